"""Ways to give memory to requests: what memory_waste.py compares.

Before paging, a request's keys and values had to lie in one row. Its length is not known when it comes, so
an engine reserved a row for the longest that it might become. Three kinds of waste follow (the names are
the paper's):

    reserved    will be used, but not yet: no other request can have it in the meantime
    internal    part of the row, and never used: the request ends earlier
    external    gaps between rows: free, but no gap is long enough for the next request

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(2023), sections 3.1 and 6.1 (its baselines Max, Pow2 and Oracle).
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from phase3_paged_attention.paging import BlockManager, BlockTable
from phase3_paged_attention.traffic import TrafficPattern


class ContiguousAllocator:
    """One unbroken row of slots for each request: first fit, the first gap that is long enough."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.gaps = [(0, num_slots)]  # start and length, in order

    @property
    def num_free(self) -> int:
        return sum(length for _, length in self.gaps)

    def allocate(self, size: int) -> int | None:
        """Start of a row of `size` slots; None if no gap is long enough."""
        for i, (start, length) in enumerate(self.gaps):
            if length >= size:
                self.gaps[i : i + 1] = [(start + size, length - size)] if length > size else []
                return start
        return None

    def free(self, start: int, size: int) -> None:
        """Give a row back. Gaps that touch become one."""
        gaps: list[tuple[int, int]] = []
        for gap_start, length in sorted([*self.gaps, (start, size)]):
            if gaps and gaps[-1][0] + gaps[-1][1] == gap_start:
                gap_start, before = gaps.pop()
                length += before
            gaps.append((gap_start, length))
        self.gaps = gaps


def fill_blocks(lengths: Sequence[int], num_blocks: int, block_size: int) -> list[BlockTable]:
    """Tables from the real block manager for requests of these final lengths, in this order, while they fit."""
    manager = BlockManager(num_blocks + 1, block_size, enable_prefix_caching=False)  # and the null block
    tables = []
    for n in lengths:
        table = BlockTable()
        if not manager.allocate(table, range(int(n)), int(n)):
            break
        tables.append(table)
    return tables


def requests_that_fit(lengths: Sequence[int], num_blocks: int, block_size: int) -> int:
    """How many requests of these final lengths fit at a time."""
    fit = len(fill_blocks(lengths, num_blocks, block_size))
    if fit == len(lengths):
        raise ValueError(f"all {fit} requests fit {num_blocks} blocks: give more of them")
    return fit


def rows_that_fit(num_slots: int, row: int) -> int:
    """How many requests fit at a time if each gets a row of this length."""
    allocator, count = ContiguousAllocator(num_slots), 0
    while allocator.allocate(row) is not None:
        count += 1
    return count


# ---------------------------------------------------------------------- memory at work


@dataclass
class Shares:
    """What memory is used for, as shares of it, on the average of all steps. The four add up to 1."""

    used: float
    reserved: float
    internal: float
    external: float
    running: float  # requests at a time


@dataclass(eq=False)
class Request:
    """tokens: so far. room: slots that it holds."""

    isl: int
    osl: int
    tokens: int
    room: int = 0
    start: int | None = None
    table: BlockTable = field(default_factory=BlockTable)

    @property
    def final(self) -> int:
        return self.isl + self.osl


class Rows:
    """One row a request, of the length that `row_length` says."""

    def __init__(self, num_slots: int, row_length: Callable[[Request], int]) -> None:
        self.allocator, self.row_length = ContiguousAllocator(num_slots), row_length

    def make_room(self, request: Request) -> bool:
        request.room = self.row_length(request)
        request.start = self.allocator.allocate(request.room)
        return request.start is not None

    def free(self, request: Request) -> None:
        self.allocator.free(request.start, request.room)


class Blocks:
    """Blocks of 16, one more whenever the last one is full."""

    def __init__(self, num_slots: int) -> None:
        self.manager = BlockManager(num_slots // 16 + 1, 16, enable_prefix_caching=False)

    def make_room(self, request: Request) -> bool:
        n = request.tokens + (request.room > 0)  # a running request is about to write one more
        fits = self.manager.allocate(request.table, range(n), n)
        request.room = 16 * len(request.table.blocks)
        return fits

    def free(self, request: Request) -> None:
        self.manager.free(request.table)
        request.room = 0


POLICIES: dict[str, Callable[[int, TrafficPattern], Rows | Blocks]] = {
    "longest": lambda slots, pattern: Rows(slots, lambda r: pattern.max_tokens),
    "power of 2": lambda slots, pattern: Rows(
        slots, lambda r: min(pattern.max_tokens, r.isl + (1 << (r.osl - 1).bit_length()))
    ),
    "oracle": lambda slots, pattern: Rows(slots, lambda r: r.final),
    "paged": lambda slots, pattern: Blocks(slots),
}
"""A row for the longest possible; for the answer's length guessed right to a factor of 2, known exactly; blocks."""


def simulate(
    policy: str, pattern: TrafficPattern, num_slots: int, rng: np.random.Generator, steps: int
) -> Shares:
    """A server with an endless queue: it admits requests that fit; each generates one token per step until it finishes."""
    memory, arriving = POLICIES[policy](num_slots, pattern), _endless(pattern, rng)
    waiting, running, total = deque([next(arriving)]), [], np.zeros(4)
    # Until the first requests have ended the memory fills up: that is not how a server looks at work.
    warmup = min(steps, 1500)
    for step in range(warmup + steps):
        for r in [r for r in running if r.tokens == r.final]:
            running.remove(r)
            memory.free(r)
        while memory.make_room(waiting[0]):
            running.append(waiting.popleft())
            if not waiting:
                waiting.append(next(arriving))
        i = 0
        while i < len(running):
            r = running[i]
            if r.tokens < r.room or memory.make_room(r):
                r.tokens += 1
                i += 1
            else:  # the last one to come makes room; it keeps its text, and comes back
                waiting.appendleft(running.pop())
                memory.free(waiting[0])
        if step >= warmup:
            used = sum(r.tokens for r in running)
            reserved = sum(min(r.final, r.room) - r.tokens for r in running)
            internal = sum(max(0, r.room - r.final) for r in running)
            total += (used, reserved, internal, len(running))
    used, reserved, internal = (float(x) / steps / num_slots for x in total[:3])
    return Shares(used, reserved, internal, 1 - used - reserved - internal, float(total[3]) / steps)


def _endless(pattern: TrafficPattern, rng: np.random.Generator) -> Iterator[Request]:
    while True:
        for isl, osl in zip(*pattern.draw(rng, 500), strict=True):
            yield Request(int(isl), int(osl), tokens=int(isl))
