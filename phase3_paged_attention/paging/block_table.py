"""A request's page table, and the hash that names a block's content."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from phase3_paged_attention.paging.block_allocator import PhysicalBlock


@dataclass(eq=False, slots=True)
class BlockTable:
    """The page table of one request. It belongs to the request; the block manager fills it.

    Attributes:
        blocks: physical blocks in the order of the tokens: token t is in blocks[t // block_size]. The null block stands
            where nothing is kept.
        block_ids: their numbers.
        num_tokens: tokens that have room. The next one is written behind them.
        num_hashed: how many of `blocks` have been entered in the prefix cache.
        block_hashes: of the request's full blocks of tokens, computed as far as they were needed.
    """

    blocks: list[PhysicalBlock] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    num_tokens: int = 0
    num_hashed: int = 0
    block_hashes: list[bytes] = field(default_factory=list)


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Block hash of a full block: of its tokens and, through `parent`, the hash before it, of all tokens before.

    Keys and values depend on everything that came before, so the same 16 tokens after another beginning are another
    content and need another hash. SHA-256, because two contents with one hash would show one user another user's text.
    """
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()
