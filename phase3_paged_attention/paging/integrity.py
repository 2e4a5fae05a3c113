"""Checks that the records of the block manager agree with each other. For tests, and for an idle engine."""

from collections import Counter
from collections.abc import Iterable

from phase3_paged_attention.paging.block_allocator import BlockAllocator
from phase3_paged_attention.paging.block_table import BlockTable
from phase3_paged_attention.paging.prefix_cache import PrefixCache


def check_integrity(
    block_size: int, allocator: BlockAllocator, prefix_cache: PrefixCache, tables: Iterable[BlockTable]
) -> None:
    """Compare block tables, reference counts, free list and prefix cache with each other.

    Raises:
        RuntimeError: they disagree; the message says where. This is a bug, never a user's mistake.
    """
    for table in tables:
        demand(table.block_ids == [b.block_id for b in table.blocks], "a table's ids and blocks differ")
        demand(
            len(table.blocks) * block_size >= table.num_tokens,
            f"{table.num_tokens} tokens in {len(table.blocks)} blocks",
        )
    held = Counter(block for table in tables for block in table.block_ids)
    free = Counter(block.block_id for block in allocator)
    demand(free.total() == allocator.num_free, "the free list's length and its count differ")
    demand(free.total() == len(free), "a block is twice in the free list")
    demand(0 not in free, "the null block is free")
    demand(allocator.null_block.ref_count == 1 + held[0], "the null block is not counted right")
    for block in allocator.blocks[1:]:
        i = block.block_id
        demand(block.ref_count == held[i], f"{block}, but {held[i]} tables point to it")
        demand((i in free) == (block.ref_count == 0), f"{block} is free and in use, or neither")
    hashes = {(b.block_hash, b.block_id) for b in allocator.blocks if b.block_hash is not None}
    cached = {(block_hash, b.block_id) for block_hash, b in prefix_cache}
    demand(hashes == cached, "the prefix cache and the blocks' hashes differ")


def demand(condition: bool, what: str) -> None:
    """Raise RuntimeError unless the condition holds."""
    if not condition:
        raise RuntimeError(f"the block manager contradicts itself: {what}")
