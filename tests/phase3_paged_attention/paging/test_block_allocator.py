"""The free list: what is taken in which order."""

import pytest

from phase3_paged_attention.paging import BlockAllocator


def test_allocator_takes_in_order_and_gives_from_the_middle():
    allocator = BlockAllocator(6)
    blocks = allocator.blocks
    allocator.remove(blocks[3])
    assert [b.block_id for b in allocator] == [1, 2, 4, 5] and allocator.num_free == 4
    with pytest.raises(ValueError, match="is not free"):
        allocator.remove(blocks[3])
    with pytest.raises(ValueError, match="is not free"):
        allocator.remove(allocator.null_block)
    allocator.free_to_front([blocks[3]])
    assert [b.block_id for b in allocator] == [3, 1, 2, 4, 5]
    assert [allocator.take().block_id for _ in range(5)] == [3, 1, 2, 4, 5]
    with pytest.raises(MemoryError, match="no free block"):
        allocator.take()
    assert list(allocator) == [] and allocator.num_free == 0
