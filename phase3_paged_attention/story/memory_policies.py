"""Ways to give memory to requests: what memory_waste.py compares.

Before paging, a request's keys and values had to lie in one row. Its length is not known when it comes, so
an engine reserved a row for the longest that it might become. Three kinds of waste follow (the names are
the paper's):

    reserved    will be used, but not yet: nobody else can have it in the meantime
    internal    part of the row, and never used: the request ends earlier
    external    gaps between rows: free, but no gap is long enough for the next request

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(2023), sections 3.1 and 6.1 (its baselines Max, Pow2 and Oracle).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.paging.block_table import BlockTable
from phase3_paged_attention.traffic.patterns import TrafficPattern

# ---------------------------------------------------------------------- one row a request


class ContiguousAllocator:
    """One unbroken row of slots for each request: first fit, the first gap that is long enough.

    Args:
        num_slots: room for this many tokens.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots is {num_slots}: room for at least 1 token is needed")
        self.num_slots = num_slots
        self.gaps = [(0, num_slots)]  # start and length, in order

    @property
    def num_free(self) -> int:
        return sum(length for _, length in self.gaps)

    @property
    def largest_gap(self) -> int:
        return max((length for _, length in self.gaps), default=0)

    def allocate(self, size: int) -> int | None:
        """Start of a row of `size` slots; None if no gap is long enough."""
        if size < 1:
            raise ValueError(f"a row of {size} slots: at least 1 is needed")
        for i, (start, length) in enumerate(self.gaps):
            if length >= size:
                rest = [(start + size, length - size)] if length > size else []
                self.gaps[i : i + 1] = rest
                return start
        return None

    def free(self, start: int, size: int) -> None:
        """Give a row back. Gaps that touch become one."""
        gaps: list[tuple[int, int]] = []
        for gap in sorted([*self.gaps, (start, size)]):
            if gaps and gaps[-1][0] + gaps[-1][1] > gap[0]:
                raise ValueError(f"the row of {size} slots at {start} is free already")
            if gaps and gaps[-1][0] + gaps[-1][1] == gap[0]:
                gaps[-1] = (gaps[-1][0], gaps[-1][1] + gap[1])
            else:
                gaps.append(gap)
        self.gaps = gaps


def requests_that_fit(lengths: Sequence[int], num_blocks: int, block_size: int) -> int:
    """How many requests of these final lengths fit at a time, in this order, with the real block manager."""
    manager = BlockManager(num_blocks + 1, block_size, enable_prefix_caching=False)  # and the null block
    for count, n in enumerate(lengths):
        if not manager.allocate(BlockTable(), range(int(n)), int(n)):
            return count
    raise ValueError(f"all {len(lengths)} requests fit {num_blocks} blocks: give more of them")


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

    used: float = 0.0
    reserved: float = 0.0
    internal: float = 0.0
    external: float = 0.0
    running: float = 0.0  # requests at a time
    steps: int = 0


@dataclass(eq=False)
class _Running:
    now: int  # tokens so far
    final: int
    place: int = 0
    row: int = 0  # slots of its row, or of its blocks
    table: BlockTable = field(default_factory=BlockTable)


ROWS: dict[str, Callable[[int, int, int], int]] = {
    "longest": lambda prompt, answer, longest: longest,
    "power of 2": lambda prompt, answer, longest: min(longest, prompt + (1 << (answer - 1).bit_length())),
    "oracle": lambda prompt, answer, longest: prompt + answer,
}
"""Length of the row: the longest possible; the answer's length guessed right to a factor of 2; known exactly."""


def simulate(
    policy: str, pattern: TrafficPattern, num_slots: int, rng: np.random.Generator, steps: int
) -> Shares:
    """A server with an endless queue: who fits is let in, each writes a token a step, who is done leaves.

    Args:
        policy: "longest", "power of 2", "oracle" (one row a request), or "paged" (blocks of 16).
    """
    queue = _endless(pattern, rng)
    step, running = _paged_steps(num_slots, queue) if policy == "paged" else _row_steps(
        policy, pattern, num_slots, queue)  # fmt: skip
    total = np.zeros(4)
    # Until the first requests have ended the memory fills up: that is not how a server looks at work.
    warmup = min(steps, 1500)
    for i in range(steps + warmup):
        step()
        if i < warmup:
            continue
        used = sum(r.now for r in running)
        reserved = sum(min(r.final, r.row) - r.now for r in running)
        internal = sum(max(0, r.row - r.final) for r in running)
        total += (used, reserved, internal, len(running))
    used, reserved, internal = (float(x) / steps / num_slots for x in total[:3])
    return Shares(used, reserved, internal, 1 - used - reserved - internal, float(total[3]) / steps, steps)


def _endless(pattern: TrafficPattern, rng: np.random.Generator):
    while True:
        for prompt, answer in zip(*pattern.draw(rng, 500), strict=True):
            yield int(prompt), int(answer)


def _row_steps(policy: str, pattern: TrafficPattern, num_slots: int, queue):
    allocator, running = ContiguousAllocator(num_slots), []
    head = [next(queue)]

    def step() -> None:
        for r in [r for r in running if r.now == r.final]:
            running.remove(r)
            allocator.free(r.place, r.row)
        while True:
            prompt, answer = head[0]
            row = ROWS[policy](prompt, answer, pattern.max_tokens)
            place = allocator.allocate(row)
            if place is None:
                break
            running.append(_Running(prompt, prompt + answer, place, row))
            head[0] = next(queue)
        for r in running:
            r.now += 1

    return step, running


def _paged_steps(num_slots: int, queue, size: int = 16):
    manager = BlockManager(num_slots // size + 1, size, enable_prefix_caching=False)
    running: list[_Running] = []
    waiting = [_Running(p, p + a) for p, a in [next(queue)]]

    def step() -> None:
        for r in [r for r in running if r.now == r.final]:
            running.remove(r)
            manager.free(r.table)
        while manager.allocate(waiting[0].table, range(waiting[0].now), waiting[0].now):
            waiting[0].row = len(waiting[0].table.blocks) * size
            running.append(waiting.pop(0))
            if not waiting:
                waiting.extend(_Running(p, p + a) for p, a in [next(queue)])
        for r in list(running):
            # A block lasts for 16 tokens. Only then is there anything to ask for.
            while r.now == r.row and r in running:
                if manager.allocate(r.table, range(r.now + 1), r.now + 1):
                    r.row += size
                else:
                    last = running.pop()  # the last one to come makes room; it keeps its text, and comes back
                    manager.free(last.table)
                    waiting.insert(0, last)
            if r in running:
                r.now += 1

    return step, running
