"""Chooses the number of splits of a context, and computes how many programs run at the same time.

A GPU has many multiprocessors: 132 on an H100. A single request with 8 KV heads uses 8 of them, and 124
are idle. So a context is divided into splits ("split KV"), and a second kernel merges their results. But splits
have a cost: the merge, and a last round of programs in which most multiprocessors may be idle.

    programs = splits of all requests x KV heads       the work
    rounds   = programs / resident, rounded up         resident: programs that run at the same time
    time     ~ rounds x tokens per split

The rule takes the fewest splits that reach at least 85% of the best speed. It assumes that the time of a program does not depend
on the number of programs beside it; where programs share the GPU's bandwidth, a last round with few programs is shorter.

Example: one request of 32,768 tokens, 8 KV heads, 264 resident programs (two per multiprocessor). One split: 8 programs, 1 round of 32,768
tokens. 32 splits: 256 programs, 1 round of 1,024 tokens: 32 times as fast. 35 splits would need a second round. The
rule takes 29 splits: one round of 1,152 tokens reaches more than 85% of the best speed.

Source of the idea: FlashAttention-3's split heuristic (hopper/heuristics.h), which weighs rounds in this way
for contexts of equal length; counting the splits of each request covers unequal ones as well.
FlashAttention-3 counts multiprocessors, not resident programs, and does not split once 80% of them have one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MOST_SPLITS = 128
FEW_TILES = 4  # a context of at most this many tiles is not split
REGISTERS = 65536  # of a multiprocessor, on every card from sm_50 on
RESERVED_SHARED = 1024  # bytes of shared memory that the system takes from each program
GOOD_ENOUGH = 0.85


class Splits(NamedTuple):
    """Contexts are split every `split_tokens` tokens, the longest into `num_splits`."""

    num_splits: int
    split_tokens: int


def choose_splits(context_lens: Sequence[int], num_kv_heads: int, resident: int, tile: int) -> Splits:
    """The fewest splits that keep the GPU busy.

    Args:
        context_lens: tokens of each request.
        num_kv_heads: each needs its own program. resident: programs that run at the same time.
        tile: tokens that a program reads at a time; a split is a multiple of it.
    """
    tiles = max(1, -(-max(context_lens, default=0) // tile))
    if tiles <= FEW_TILES or resident <= 1:
        return Splits(1, tiles * tile)
    most = min(tiles, MOST_SPLITS)
    split_tiles = -(-tiles // np.arange(1, most + 1))
    lens_in_tiles = -(-np.asarray(context_lens) // tile)
    programs = num_kv_heads * (-(-lens_in_tiles[:, None] // split_tiles)).sum(axis=0)
    time = -(-programs // resident) * split_tiles
    best = int(np.argmax(time * GOOD_ENOUGH <= time.min()))  # the first that is good enough
    size = int(split_tiles[best])
    return Splits(-(-tiles // size), size * tile)


def programs_that_fit(
    registers: int, shared: int, num_warps: int, card_shared: int, card_threads: int
) -> int:
    """Programs of a compiled kernel that one multiprocessor holds at once, by registers, shared memory and threads.

    Args: registers per thread, bytes of shared memory and warps per program; the multiprocessor's shared memory and threads.
    Source: CUDA C++ Programming Guide, "Compute Capabilities"; registers are allocated in units of 8 per thread. 32 programs are
    the most on sm_80, sm_90 and sm_100. Other cards hold 16 or 24, which only matters for programs of one or two warps.
    """
    threads = 32 * num_warps
    by_registers = REGISTERS // (max(1, -(-registers // 8)) * 8 * threads)
    return max(1, min(by_registers, card_shared // (shared + RESERVED_SHARED), card_threads // threads, 32))
