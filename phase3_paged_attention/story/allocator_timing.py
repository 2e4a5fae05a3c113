"""What an operation on the free list costs, however long the list is: steps counted, and time measured."""

import gc
import random
import time
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


def time_operations(num_blocks: int, rounds: int = 5) -> dict[str, float]:
    """Nanoseconds of one operation on a free list of `num_blocks` blocks, loop included; the best round.

    "take", "free" and "remove" (from the middle) come back to the same few blocks, so that these are in the
    processor's cache. "first touch" removes blocks that were not touched before: each has to come from main
    memory, and that, not the list, is what grows. "deque" is what a Python deque needs for "remove".
    """
    allocator, numbers = BlockAllocator(num_blocks), deque(range(num_blocks))
    batch = min(500, num_blocks // 4)
    middle = range(num_blocks // 3, 2 * num_blocks // 3)
    some = [allocator.blocks[i] for i in random.Random(num_blocks).sample(middle, batch)]
    best: dict[str, float] = {}

    def clock(name: str, count: int, run: Callable[[], object]) -> object:
        began = time.perf_counter()
        result = run()
        nanoseconds = (time.perf_counter() - began) / count * 1e9
        best[name] = min(best.get(name, nanoseconds), nanoseconds)
        return result

    def remove_all() -> None:
        for block in some:
            allocator.remove(block)

    enabled = gc.isenabled()
    gc.disable()  # Python's collector visits all objects now and then: that would be O(n), and not ours
    try:
        for i in range(rounds + 1):
            clock("remove" if i else "first touch", batch, remove_all)
            allocator.free_to_back(some)
            taken = clock("take", batch, lambda: [allocator.take() for _ in range(batch)])
            clock("free", batch, lambda blocks=taken: allocator.free_to_front(blocks))
        clock("deque", 1, lambda: numbers.remove(num_blocks // 2))
    finally:
        if enabled:
            gc.enable()
    return best
