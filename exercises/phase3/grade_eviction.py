"""Grader of exercise 3.4: which block is forgotten first."""

from __future__ import annotations

import random
from typing import Any

from exercises.grading import NotYet, expect_equal, guard
from exercises.judging.judge import expect_unchanged
from phase3_paged_attention.paging.block_allocator import BlockAllocator

ORDER = "the order in which take() gives them out"


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
        raise NotYet(
            diagnosis="evicts-most-recent",
            says="Blocks are taken from the end, where the latest ones come in. What was used last is forgotten first.",
            tried=tried, got=got, expected=[1, 2, 3],
        )  # fmt: skip
    expect_equal(got, [1, 2, 3], tried=tried)
    head_first = "The beginning of the text is forgotten before its end. A chain is of use from its first block on, so "
    head_first += "without that one the others can never be found again."
    recent = "What was freed last is taken first: the cache forgets what somebody has just used."
    kept = "The last block is not full, so it has no name and nobody will ever ask for it. It should go first of all; "
    kept += "here a cached block has to go in its place."
    _order(FreeList, 3, {(4, 5, 1, 2, 3): ("head-evicted-first", head_first),
                         (3, 2, 1, 4, 5): ("evicts-most-recent", recent),
                         (1, 2, 3, 4, 5): ("evicts-most-recent", recent)}, (4, 5, 3, 2, 1))  # fmt: skip
    _order(FreeList, 2, {(4, 5, 3, 2, 1): ("nameless-kept", kept),
                         (4, 5, 2, 1, 3): ("nameless-kept", kept),
                         (3, 4, 5, 1, 2): ("head-evicted-first", head_first)}, (3, 4, 5, 2, 1))  # fmt: skip
    turned = (
        "Blocks without a name are taken in the order of their freeing: the last block of the text first."
    )
    _order(FreeList, 1, {(2, 3, 4, 5, 1): ("nameless-turned-round", turned)}, (3, 2, 4, 5, 1))
    tried = "f = FreeList([4, 5]); f.give_back([1, 2, 3], num_full=3); f.hit(2); f.give_back([6], num_full=1)"
    tried += "; then f.take() five times"
    f = guard(FreeList, [4, 5], tried=tried)
    guard(f.give_back, [1, 2, 3], 3, tried=tried)
    guard(f.hit, 2, tried=tried)
    guard(f.give_back, [6], 1, tried=tried)
    got = _drain(f, 5, tried)
    if 2 in got:
        raise NotYet(
            diagnosis="hit-still-free",
            says="Block 2 was hit: a request reads it now. It has to leave the list, wherever it stood; moving it to "
            "the end only puts off the moment at which somebody else overwrites it.",
            tried=tried, got=got, expected=[4, 5, 3, 1, 6],
        )  # fmt: skip
    expect_equal(got, [4, 5, 3, 1, 6], tried=tried)


def _order(FreeList: type, num_full: int, known: dict, expected: tuple[int, ...]) -> None:
    tried = f"f = FreeList([4, 5]); f.give_back([1, 2, 3], num_full={num_full}); then f.take() five times"
    f = guard(FreeList, [4, 5], tried=tried)
    guard(f.give_back, [1, 2, 3], num_full, tried=tried)
    got = _drain(f, 5, tried)
    if tuple(got) in known:
        diagnosis, says = known[tuple(got)]
        raise NotYet(diagnosis=diagnosis, says=says, tried=tried, got=got, expected=list(expected))
    expect_equal(got, list(expected), tried=f"{tried}: {ORDER}")


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
