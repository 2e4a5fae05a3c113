"""Grader of exercise 5.6: blocks read from a side that may die, under a lease that may end."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from exercises.grading import Diagnoses, Exercise, NotYet, expect_equal, guard
from exercises.judging.judge import judge
from exercises.phase5.other_side import OtherSide

SAYS = Diagnoses.of("p5e6_block_transfer load_blocks")
COMPUTED_SAYS = Diagnoses.of("p5e6_block_transfer num_computed")
FOREVER = 1000.0


class Case(NamedTuple):
    """A transfer: its pairs of blocks, how many are cached, when the lease ends, after how many reads the other side dies."""

    pairs: list[tuple[int, int]]
    num_cached: int = 0
    lease_until: float = FOREVER
    dies_after: int | None = None

    @property
    def told(self) -> str:
        what = f"{len(self.pairs)} blocks, num_cached {self.num_cached}"
        if self.lease_until < FOREVER:
            what += f", the lease ends at {self.lease_until}"
        if self.dies_after is not None:
            what += f", the other side dies after {self.dies_after} reads"
        return what

    @property
    def good(self) -> int:
        """How many blocks are good in the end."""
        wanted = len(self.pairs) - self.num_cached
        in_time = sum(second < self.lease_until for second in range(1, wanted + 1))
        return self.num_cached + min(in_time, wanted if self.dies_after is None else self.dies_after)


BY_HAND = [
    Case([(7, 1), (8, 2), (3, 4)]),
    Case([(7, 1), (8, 2), (3, 4)], num_cached=1),
    Case([(7, 1), (8, 2), (3, 4), (9, 6)], dies_after=2),
    Case([(7, 1), (8, 2), (3, 4)], lease_until=2.0),
    Case([(7, 1), (8, 2), (3, 4)], num_cached=1, lease_until=2.0),
    Case([(7, 1), (8, 2), (3, 4)], dies_after=3),  # everything was read, and `done` finds it dead
    Case([(7, 1), (8, 2), (3, 4)], num_cached=3),
]


def grade_transfer(load_blocks: Callable[..., int], num_computed: Callable[..., int]) -> str:
    rng = random.Random(3)
    drawn = []
    for _ in range(60):
        n = rng.randint(1, 8)
        pairs = list(zip(rng.sample(range(1, 40), n), rng.sample(range(1, 40), n), strict=True))
        num_cached = rng.choice([0, 0, rng.randint(0, n)])
        lease = rng.choice([FOREVER, rng.randint(1, 8) + rng.choice([0.0, 0.5])])
        drawn.append(Case(pairs, num_cached, lease, rng.choice([None, None, rng.randint(0, n - num_cached)])))
    for case in BY_HAND + drawn:
        _transfer(load_blocks, case)
    judge(
        num_computed,
        [(2, 4, 11), (0, 4, 11), (3, 4, 12), (3, 4, 11), (1, 16, 16), (1, 16, 3), (5, 8, 200), (1, 1, 1)],
        lambda good, size, tokens: min(good * size, tokens - 1),
        {
            "nothing-left-to-compute": lambda good, size, tokens: min(good * size, tokens),
            "more-than-there-are": lambda good, size, tokens: good * size,
            "a-whole-block-again": lambda good, size, tokens: good * size if good * size < tokens else (good - 1) * size,
            "one-less-always": lambda good, size, tokens: max(0, min(good * size, tokens) - 1),
        },
        COMPUTED_SAYS,
        show=lambda good, size, tokens: f"num_computed({good}, {size}, {tokens})",
    )  # fmt: skip
    return "Seven transfers by hand and 60 at random, with deaths and leases that end: every good block is used, and no other."


def _transfer(load_blocks: Callable[..., int], case: Case) -> None:
    blocks = {theirs: f"content {theirs}" for theirs, _ in case.pairs}
    other = OtherSide(blocks, case.lease_until, case.dies_after)
    cache = {own: f"content {theirs}" for theirs, own in case.pairs[: case.num_cached]}
    try:
        got: Any = guard(
            load_blocks, other, list(case.pairs), case.num_cached, cache, tried=f"load_blocks: {case.told}"
        )
    except NotYet as error:
        if isinstance(error.__context__, ConnectionError):
            raise SAYS.no("crash-not-caught", case.told, "ConnectionError", case.good) from None
        raise
    if any(entry == ("read", theirs) for theirs, _ in case.pairs[: case.num_cached] for entry in other.log):
        raise SAYS.no("reads-cached-again", case.told, f"asked of the other side: {other.log}")
    if got is not None and got != case.good:
        _name_the_count(case, got)
    expect_equal(got, case.good, tried=case.told)
    for theirs, own in case.pairs[: case.good]:
        if cache.get(own) != f"content {theirs}":
            raise SAYS.no("wrong-place", case.told, f"cache: {cache}", f"block {own}: 'content {theirs}'")
    if case.lease_until == FOREVER and case.dies_after is None:
        if ("done",) not in other.log:
            raise SAYS.no("never-done", case.told, f"asked of the other side: {other.log}")
        if other.log.index(("done",)) < len(other.log) - 1:
            raise SAYS.no("done-too-early", case.told, f"asked of the other side: {other.log}")


def _name_the_count(case: Case, got: Any) -> None:
    wanted = len(case.pairs) - case.num_cached
    if case.num_cached and got == case.good - case.num_cached:
        raise SAYS.no("cached-not-counted", case.told, got, case.good)
    if case.dies_after is not None and got in (0, case.num_cached):
        raise SAYS.no("crash-loses-all", case.told, got, case.good)
    if case.lease_until <= wanted:
        if got == case.num_cached:
            raise SAYS.no("lease-loses-all", case.told, got, case.good)
        if got == len(case.pairs):
            raise SAYS.no("no-clock", case.told, got, case.good)
        if got == case.good + 1:
            raise SAYS.no("clock-before-reading", case.told, got, case.good)


EXERCISES = [
    Exercise("p5e6_block_transfer", ("load_blocks", "num_computed"), grade_transfer),
]
