"""Chooses the number of splits of a context, and computes how many programs run at the same time.

A GPU has many multiprocessors: 132 on an H100. A single request with 8 KV heads uses 8 of them, and 124 are idle. So a context is
divided into splits ("split KV"), and a second kernel merges their results. Splits have a cost: the merge, and a last round with few programs.

    programs = splits of all requests x KV heads       the work
    rounds   = programs / resident, rounded up         resident: programs that run at the same time
    time     = rounds x tiles per split                in latencies: a program waits once for each tile
    floor    = tiles of all requests / saturating      Little's law: so many tiles in flight reach the bandwidth

The rule takes the fewest splits that reach at least 85% of the best speed, and ignores the floor. On an H100, 28 programs with a tile of
32 KiB in flight saturate the bandwidth at the latency of an idle GPU. With that floor 3 splits would reach 85% in the example, 4 all of it, and a full batch
would gain nothing. But 43 cost only their merge (1% of the bytes); at twice the latency 3 would take 2.3 times as long. None of this is measured.

Example: one request of 512 tiles, 8 KV heads, 396 resident programs: 49 splits need one round of 11 tiles; the rule takes 43, of 12 tiles.

Source of the idea: FlashAttention-3's heuristic (hopper/heuristics.h), for contexts of equal length; here the splits of each request count.
FlashAttention-3 counts multiprocessors, not resident programs, and does not split once 80% of them have one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MOST_SPLITS = 128
FEW_TILES = 4  # a context of at most this many tiles is not split
REGISTERS = 65536  # of a multiprocessor, on every card from sm_50 on
RESERVED_SHARED = 1024  # bytes of shared memory that the system takes from each program, from sm_80 on
GOOD_ENOUGH = 0.85


class Splits(NamedTuple):
    """Contexts are split every `split_tokens` tokens, the longest into `num_splits`."""

    num_splits: int
    split_tokens: int


def choose_splits(context_lens: Sequence[int], num_kv_heads: int, resident: int, tile: int) -> Splits:
    """The fewest splits that keep the GPU busy.

    Args:
        context_lens: tokens of each request. num_kv_heads: each needs its own program. resident: programs that run at the same time.
        tile: tokens that a program reads at a time; a split is a multiple of it.
    """
    tiles = max(1, -(-max(context_lens, default=0) // tile))
    if tiles <= FEW_TILES or resident <= 1:
        return Splits(1, tiles * tile)
    split_tiles, time = split_times(context_lens, num_kv_heads, resident, tile)
    best = int(np.argmax(time * GOOD_ENOUGH <= time.min()))  # the first that is good enough
    size = int(split_tiles[best])
    return Splits(-(-tiles // size), size * tile)


def split_times(
    context_lens: Sequence[int], num_kv_heads: int, resident: int, tile: int, saturating: float = float("inf")
) -> tuple[np.ndarray, np.ndarray]:
    """Tiles per split, and the time in latencies, of 1, 2, ... splits. saturating: programs that reach the bandwidth; inf: no floor."""
    lens_in_tiles = -(-np.asarray(context_lens) // tile)
    tiles = int(lens_in_tiles.max())
    split_tiles = -(-tiles // np.arange(1, min(tiles, MOST_SPLITS) + 1))
    rounds = -(-num_kv_heads * (-(-lens_in_tiles[:, None] // split_tiles)).sum(axis=0) // resident)
    return split_tiles, np.maximum(rounds * split_tiles, num_kv_heads * lens_in_tiles.sum() / saturating)


def programs_that_fit(
    registers: int, shared: int, num_warps: int, card_shared: int, card_threads: int, major: int
) -> int:
    """Programs of a compiled kernel that one multiprocessor holds at once, by registers, shared memory and threads.

    Args: registers per thread; a program's shared memory and warps; the multiprocessor's shared memory, threads and sm version (7: sm_75).
    Source: CUDA C++ Programming Guide, "Compute Capabilities"; registers are allocated in units of 8 per thread. 32 programs are
    the most on sm_80, sm_90 and sm_100. Other cards hold 16 or 24, which only matters for programs of one or two warps.
    """
    threads = 32 * num_warps
    by_registers = REGISTERS // (max(1, -(-registers // 8)) * 8 * threads)
    by_shared = card_shared // max(1, shared + RESERVED_SHARED * (major >= 8))
    return max(1, min(by_registers, by_shared, card_threads // threads, 32))
