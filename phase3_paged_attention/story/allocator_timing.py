"""What an operation on the free list costs, however long the list is: steps counted, and time measured."""

from __future__ import annotations

import gc
import random
import time
from collections import deque
from collections.abc import Callable

from phase3_paged_attention.paging.block_allocator import BlockAllocator

BYTES_PER_BLOCK = 250  # a PhysicalBlock, its number and its places in lists, with some reserve


def links_changed(num_blocks: int) -> int:
    """How many blocks notice that one is taken out of the middle of a free list of this length."""
    allocator = BlockAllocator(num_blocks)
    before = [(b.previous, b.next) for b in allocator.blocks]
    allocator.remove(allocator.blocks[num_blocks // 2])
    return sum(old != (b.previous, b.next) for old, b in zip(before, allocator.blocks, strict=True))


def time_operations(num_blocks: int, rounds: int = 5, batch: int = 500) -> dict[str, float]:
    """Nanoseconds of one operation on a free list of `num_blocks` blocks, loop included; the best round.

    "take", "free" and "remove" (from the middle) come back to the same few blocks, so that these are in the
    processor's cache. "first touch" removes blocks that were not touched before: each has to come from main
    memory, and that, not the list, is what grows. "deque" is what a Python deque needs for "remove".
    """
    enabled = gc.isenabled()
    gc.disable()  # Python's collector visits all objects now and then: that would be O(n), and not ours
    try:
        allocator = BlockAllocator(num_blocks)
        rng = random.Random(num_blocks)
        batch = min(batch, num_blocks // 4)
        some = [allocator.blocks[rng.randrange(num_blocks // 3, 2 * num_blocks // 3)] for _ in range(batch)]
        some = list(dict.fromkeys(some))
        best: dict[str, float] = {}

        def clock(name: str, count: int, run: Callable[[], None]) -> None:
            began = time.perf_counter()
            run()
            nanoseconds = (time.perf_counter() - began) / count * 1e9
            best[name] = min(best.get(name, nanoseconds), nanoseconds)

        def remove_all() -> None:
            for block in some:
                allocator.remove(block)

        clock("first touch", len(some), remove_all)
        allocator.free_to_back(some)
        for _ in range(rounds):
            clock("remove", len(some), remove_all)
            allocator.free_to_back(some)
        taken = []

        def take_all() -> None:
            for _ in range(batch):
                taken.append(allocator.take())

        for _ in range(rounds + 1):
            taken.clear()
            clock("take", batch, take_all)
            for block in taken:
                block.ref_count = 0
            clock("free", batch, lambda: allocator.free_to_front(taken))
        numbers = deque(range(num_blocks))
        clock("deque", 1, lambda: numbers.remove(num_blocks // 2))
        return best
    finally:
        if enabled:
            gc.enable()
