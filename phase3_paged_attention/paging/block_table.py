"""What is written down about blocks: a request's page table, copies to make, counts, the name of a full block."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from phase3_paged_attention.paging.block_allocator import PhysicalBlock


class BlockTable:
    """The page table of one request. Whoever owns the request owns this; the manager fills it.

    Attributes:
        blocks: physical blocks in the order of the tokens: token t is in blocks[t // block_size].
        block_ids: their numbers.
        num_tokens: tokens that have room. The next one is written behind them.
        hashes: chain hash of each full block of the request's tokens, worked out as far as it was needed.
        swap_slots: where its blocks are while it is swapped out, otherwise empty.
    """

    __slots__ = ("block_ids", "blocks", "hashes", "num_hashed", "num_tokens", "swap_slots")

    def __init__(self) -> None:
        self.blocks: list[PhysicalBlock] = []
        self.block_ids: list[int] = []
        self.num_tokens = 0
        self.num_hashed = 0  # how many of `blocks` have been entered in the prefix cache
        self.hashes: list[bytes] = []
        self.swap_slots: list[int] = []


class BlockCopy(NamedTuple):
    """Bytes to move before the next step computes. kind: "copy" (block to block), "out" (to swap), "in"."""

    kind: str
    source: int
    target: int


@dataclass
class CacheStats:
    """Counts since the start. Tokens are counted when a request is admitted."""

    looked_up_tokens: int = 0
    hit_tokens: int = 0
    taken_blocks: int = 0
    evicted_blocks: int = 0
    copied_blocks: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the tokens looked up that were in the cache."""
        return self.hit_tokens / self.looked_up_tokens if self.looked_up_tokens else 0.0


@dataclass
class BlockJournal:
    """What happened to blocks, by id; kept only while somebody listens (`manager.journal`)."""

    taken: list[int] = field(default_factory=list)
    hit: list[int] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Name of a full block: its tokens, and through `parent` all tokens before them.

    Keys and values depend on everything that came before. So the same 16 tokens after another beginning
    are another content, and the name has to say so. SHA-256, because two contents with one name would show
    one user another user's text.
    """
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()
