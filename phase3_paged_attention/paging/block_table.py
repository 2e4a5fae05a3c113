"""A request's page table, and the hash that identifies the content of a block."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from phase3_paged_attention.paging.block_allocator import PhysicalBlock


@dataclass(eq=False, slots=True)
class BlockTable:
    """The page table of one request. It belongs to the request; the block manager fills it.

    Attributes:
        blocks: physical blocks in the order of the tokens: token t is in blocks[t // block_size]. The null block is an
            entry without content.
        block_ids: their ids.
        num_tokens: tokens that have a slot. The next token is written after them.
        num_hashed: number of `blocks` that have been added to the prefix cache.
        block_hashes: hashes of the request's full blocks, as far as they have been needed.
        salt: enters the hash of the first block: only requests with the same salt share blocks.
    """

    blocks: list[PhysicalBlock] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    num_tokens: int = 0
    num_hashed: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    salt: bytes = b""

    @classmethod
    def salted(cls, text: str | None) -> Self:
        """An empty table with a request's salt; None: the request shares blocks with all requests without a salt."""
        return cls(salt=hashlib.sha256(text.encode()).digest() if text else b"")


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Block hash of a full block: SHA-256 over its tokens and `parent`, the hash of the block before it.

    Keys and values depend on all earlier tokens, so the same 16 tokens after another beginning need another hash.
    With SHA-256, different contents have different hashes in practice; a collision would give one user another user's text.
    """
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()
