"""How many parts to cut a context into.

A GPU has many multiprocessors: 132 on an H100. A single user with 8 KV heads gives work to 8 of them, and 124
look on. So a context is cut into parts ("split KV"), and a second kernel merges what the parts found. But
parts cost something, too: merging, and a last round of work in which most multiprocessors may be idle.

    programs = parts of all requests x KV heads        what is to be done
    rounds   = programs / slots, rounded up            slots: programs that run at the same time
    time     ~ rounds x tokens a part

The rule: the fewest parts whose time is within 15% of the best.

Example: one request of 32,768 tokens, 8 KV heads, 264 slots. One part: 8 programs, 1 round of 32,768 tokens.
32 parts: 256 programs, 1 round of 1,024 tokens: 32 times as fast. 35 parts would need a second round. The rule
takes 29: one round of 1,152 tokens is near enough.

Source of the idea: FlashAttention-3's split heuristic (hopper/heuristics.h), which weighs rounds in this way
for contexts of equal length; counting the parts of each request covers unequal ones as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MOST_SPLITS = 128
GOOD_ENOUGH = 0.85


class Splits(NamedTuple):
    """Contexts are cut every `split_tokens` tokens; the longest has `num_splits` parts."""

    num_splits: int
    split_tokens: int


def choose_splits(context_lens: Sequence[int], num_kv_heads: int, slots: int, tile: int) -> Splits:
    """The fewest parts that keep the card busy.

    Args:
        context_lens: tokens of each request.
        num_kv_heads: each is a program of its own.
        slots: programs that run at the same time.
        tile: tokens that a program reads at a time; a part is a multiple of it.
    """
    tiles = max(1, -(-max(context_lens, default=0) // tile))
    if tiles <= 4 or slots <= 1:
        return Splits(1, tiles * tile)
    most = min(tiles, MOST_SPLITS)
    split_tiles = -(-tiles // np.arange(1, most + 1))
    lens_in_tiles = -(-np.asarray(context_lens) // tile)
    programs = num_kv_heads * (-(-lens_in_tiles[:, None] // split_tiles)).sum(axis=0)
    time = -(-programs // slots) * split_tiles
    best = int(np.argmax(time * GOOD_ENOUGH <= time.min()))  # the first that is good enough
    size = int(split_tiles[best])
    return Splits(-(-tiles // size), size * tile)
