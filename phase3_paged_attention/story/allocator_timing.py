"""The cost of an operation on free lists of several lengths: links counted, and time measured."""

import random
import timeit
from collections import deque
from collections.abc import Callable

from phase3_paged_attention.paging import BlockAllocator

BYTES_PER_BLOCK = 250  # a PhysicalBlock, its number and its places in lists, with some reserve


def links_changed(num_blocks: int) -> int:
    """How many blocks notice that one is taken out of the middle of a free list of this length."""
    allocator = BlockAllocator(num_blocks)
    before = [(b.previous, b.next) for b in allocator.blocks]
    allocator.remove(allocator.blocks[num_blocks // 2])
    return sum(old != (b.previous, b.next) for old, b in zip(before, allocator.blocks, strict=True))


def time_operations(num_blocks: int) -> dict[str, float]:
    """Nanoseconds of an operation on a free list of `num_blocks` blocks; the best of several rounds.

    "take and free", "remove and free" (from the middle), and "deque": what a Python deque needs for "remove".
    """
    allocator, numbers = BlockAllocator(num_blocks), deque(range(num_blocks))
    middle = range(num_blocks // 3, 2 * num_blocks // 3)
    some = [allocator.blocks[i] for i in random.Random(num_blocks).sample(middle, min(500, num_blocks // 4))]

    def take_and_free() -> None:
        allocator.free_to_front([allocator.take() for _ in some])

    def remove_and_free() -> None:
        for block in some:
            allocator.remove(block)
        allocator.free_to_back(some)

    def fastest(run: Callable[[], None]) -> float:
        return min(timeit.repeat(run, number=1, repeat=5)) / (2 * len(some)) * 1e9

    return {
        "take and free": fastest(take_and_free),
        "remove and free": fastest(remove_and_free),
        "deque": timeit.timeit(lambda: numbers.remove(num_blocks // 2), number=1) * 1e9,
    }
