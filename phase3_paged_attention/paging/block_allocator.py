"""Page frames for the KV cache: which blocks of memory are free, and which is taken next.

An operating system divides memory into page frames of equal size and keeps a list of the free ones. Here the
frames are blocks of a few tokens' keys and values. Because all blocks have one size, any free block
serves any request: there is no search, and there are no gaps that are too small to use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(eq=False, repr=False, slots=True)
class PhysicalBlock:
    """One page frame: room for the keys and values of `block_size` tokens, in every layer.

    `KVStorage` holds the tensors; this record holds the block's state.

    Attributes:
        block_id: the index of the block in the tensors.
        ref_count: how many block tables point here. 0: free.
        block_hash: identifies its tokens and all tokens before them; None while it is not full, and in a
            manager without prefix caching. A free block keeps its hash until it is taken.
        previous, next: neighbours in the free list; None while it is in use.
    """

    block_id: int
    ref_count: int = 0
    block_hash: bytes | None = None
    previous: PhysicalBlock | None = None
    next: PhysicalBlock | None = None

    def __repr__(self) -> str:
        cached = ", cached" if self.block_hash else ""
        return f"PhysicalBlock({self.block_id}, ref_count={self.ref_count}{cached})"


class BlockAllocator:
    """The free list: a doubly linked list, in which every operation takes the same time at any length.

    A prefix hit removes a block from the *middle* of the list. A Python list or a deque would have to search for
    it. In a linked list each block points to its two neighbours, so it is unlinked without a search.

    Blocks are taken at the front, at first in the order 1, 2, 3, ... Block 0 is the null block: it is never
    allocated, so a table may point to it where attention reads nothing. It has a permanent reference, so that
    its count never reaches 0.

    Args:
        num_blocks: number of blocks, the null block included.

    Source: vllm/v1/core/kv_cache_utils.py, FreeKVCacheBlockQueue.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(
                f"num_blocks is {num_blocks}: at least 2 are needed, because block 0 is never allocated"
            )
        self.blocks = [PhysicalBlock(i) for i in range(num_blocks)]
        self.null_block = self.blocks[0]
        self.null_block.ref_count = 1
        # With two sentinels every free block has two neighbours.
        self._front, self._back = PhysicalBlock(-1), PhysicalBlock(-1)
        self._front.next, self._back.previous = self._back, self._front
        self.num_free = 0
        self.free_to_back(self.blocks[1:])

    def take(self) -> PhysicalBlock:
        """The block at the front of the free list, with a reference count of 1.

        Raises:
            MemoryError: no block is free.
        """
        block = self._front.next
        if block is self._back:
            raise MemoryError("no free block: free one first")
        self.remove(block)
        block.ref_count = 1
        return block

    def remove(self, block: PhysicalBlock) -> None:
        """Remove this block from the free list, at any position.

        Raises:
            ValueError: the block is not in the free list.
        """
        before, after = block.previous, block.next
        if before is None or after is None:
            raise ValueError(f"{block} is not free")
        before.next, after.previous = after, before
        block.previous = block.next = None
        self.num_free -= 1

    def free_to_back(self, blocks: Iterable[PhysicalBlock]) -> None:
        """Append blocks to the list, in this order: they are taken last."""
        for block in blocks:
            self._insert(block, before=self._back)

    def free_to_front(self, blocks: Iterable[PhysicalBlock]) -> None:
        """Put blocks at the front of the list, in this order: the first of them is taken next."""
        first = self._front.next
        for block in blocks:
            self._insert(block, before=first)

    def _insert(self, block: PhysicalBlock, before: PhysicalBlock) -> None:
        if block.next is not None:
            raise ValueError(f"{block} is free already: freed twice")
        after = before.previous
        block.previous, block.next = after, before
        after.next = before.previous = block
        self.num_free += 1

    def __iter__(self) -> Iterator[PhysicalBlock]:
        """The free blocks, the one to be taken next first."""
        block = self._front.next
        while block is not self._back:
            yield block
            block = block.next
