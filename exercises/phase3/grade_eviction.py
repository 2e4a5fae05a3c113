"""Grader of exercise 3.4: which block is forgotten first."""

import random
from typing import Any

from exercises.grading import Diagnoses, Exercise, expect_equal, guard
from exercises.judging.judge import expect_unchanged
from phase3_paged_attention.paging import BlockAllocator

SAYS = Diagnoses.of("p3e4_eviction")

# f = FreeList([4, 5]); f.give_back([1, 2, 3], num_full): the right order first, then those that tell a mistake
ORDERS: dict[int, dict[tuple[int, ...], str]] = {
    3: {
        (4, 5, 3, 2, 1): "",
        (4, 5, 1, 2, 3): "head-evicted-first",
        (3, 2, 1, 4, 5): "evicts-most-recent (in order)",
        (1, 2, 3, 4, 5): "evicts-most-recent (in order)",
    },
    2: {
        (3, 4, 5, 2, 1): "",
        (4, 5, 3, 2, 1): "nameless-kept",
        (4, 5, 2, 1, 3): "nameless-kept",
        (3, 4, 5, 1, 2): "head-evicted-first",
    },
    1: {(3, 2, 4, 5, 1): "", (2, 3, 4, 5, 1): "nameless-turned-round"},
}


def grade_free_list(FreeList: type) -> str:
    _orders_by_hand(FreeList)
    for seed in range(20):
        _random_orders(FreeList, seed)
    return "Five rows by hand, and 20 long ones at random beside the course's own BlockAllocator."


def _drain(free_list: Any, count: int, tried: str) -> list[int]:
    return [guard(free_list.take, tried=tried) for _ in range(count)]


def _orders_by_hand(FreeList: type) -> None:
    tried = "f = FreeList([1, 2, 3]), then f.take() three times"
    got = _drain(guard(FreeList, [1, 2, 3], tried=tried), 3, tried)
    if got == [3, 2, 1]:
        raise SAYS.no("evicts-most-recent", tried, got, [1, 2, 3])
    expect_equal(got, [1, 2, 3], tried=tried)
    for num_full, known in ORDERS.items():
        _order(FreeList, num_full, known)
    tried = "f = FreeList([4, 5]); f.give_back([1, 2, 3], num_full=3); f.hit(2); f.give_back([6], num_full=1)"
    tried += "; then f.take() five times"
    f = guard(FreeList, [4, 5], tried=tried)
    guard(f.give_back, [1, 2, 3], 3, tried=tried)
    guard(f.hit, 2, tried=tried)
    guard(f.give_back, [6], 1, tried=tried)
    got = _drain(f, 5, tried)
    if 2 in got:
        raise SAYS.no("hit-still-free", tried, got, [4, 5, 3, 1, 6])
    expect_equal(got, [4, 5, 3, 1, 6], tried=tried)


def _order(FreeList: type, num_full: int, known: dict[tuple[int, ...], str]) -> None:
    tried = f"f = FreeList([4, 5]); f.give_back([1, 2, 3], num_full={num_full}); then f.take() five times"
    f = guard(FreeList, [4, 5], tried=tried)
    guard(f.give_back, [1, 2, 3], num_full, tried=tried)
    got, expected = _drain(f, 5, tried), list(next(iter(known)))
    if diagnosis := known.get(tuple(got)):
        raise SAYS.no(diagnosis, tried, got, expected)
    expect_equal(got, expected, tried=f"{tried}: the order in which take() gives them out")


def _random_orders(FreeList: type, seed: int) -> None:
    """Against the course's own list: the same takes, hits and returns."""
    rng, size = random.Random(seed), 14
    tried = f"{size - 1} blocks; take, hit and give_back at random (seed {seed})"
    course = BlockAllocator(size)
    f = guard(FreeList, list(range(1, size)), tried=tried)
    held: list[list[int]] = []
    given: list[tuple[list[int], list[int]]] = []  # tables given back, as they were and as they are
    for _ in range(80):
        what = rng.random()
        if what < 0.45 and course.num_free > 3:
            n = rng.randint(1, 3)
            expected = [course.take().block_id for _ in range(n)]
            expect_equal(_drain(f, n, tried), expected, tried=tried)
            held.append(expected)
        elif what < 0.6 and course.num_free > 3:
            block = rng.choice(list(course))
            course.remove(block)
            guard(f.hit, block.block_id, tried=tried)
            held.append([block.block_id])
        elif held:
            table = held.pop(rng.randrange(len(held)))
            num_full = rng.randint(0, len(table))
            blocks = [course.blocks[b] for b in reversed(table)]
            course.free_to_front(blocks[: len(table) - num_full])
            course.free_to_back(blocks[len(table) - num_full :])
            own = list(table)
            guard(f.give_back, own, num_full, tried=tried)
            given.append((table, own))
    expected = [block.block_id for block in course]
    expect_equal(_drain(f, len(expected), tried), expected, tried=tried + ", then all that is left")
    for table, own in given:
        expect_unchanged(f.give_back, [table], [own], tried)


EXERCISES = [
    Exercise("p3e4_eviction", ("FreeList",), grade_free_list),
]
