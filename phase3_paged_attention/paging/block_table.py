"""Plain records of the block manager: a request's page table, copies to make, counts; and the hash of a block."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from phase3_paged_attention.paging.block_allocator import PhysicalBlock


@dataclass(eq=False, slots=True)
class BlockTable:
    """The page table of one request. It belongs to the request; the manager fills it.

    Attributes:
        blocks: physical blocks in the order of the tokens: token t is in blocks[t // block_size]. The null block where
            no later token looks any more (see `sliding_window`).
        block_ids: their numbers.
        num_tokens: tokens that have room. The next one is written behind them.
        num_hashed: how many of `blocks` have been entered in the prefix cache.
        block_hashes: of the request's full blocks of tokens, worked out as far as they were needed.
        swap_blocks: where its blocks are in main memory while it is swapped out, otherwise empty.
    """

    blocks: list[PhysicalBlock] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    num_tokens: int = 0
    num_hashed: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    swap_blocks: list[int] = field(default_factory=list)


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
    """What happened to blocks, by id; kept only where `manager.journal` is set."""

    taken: list[int] = field(default_factory=list)
    hit: list[int] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Block hash of a full block: of its tokens, and through `parent`, the hash before it, of all tokens before.

    Keys and values depend on everything that came before. So the same 16 tokens after another beginning
    are another content, and need another hash. SHA-256, because two contents with one hash would show
    one user another user's text.
    """
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()
