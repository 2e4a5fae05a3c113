"""Graders of exercises 3.1 and 3.2: blocks given out, and looked up."""

import itertools
import random
from collections.abc import Callable
from typing import Any

from exercises.grading import Diagnoses, Exercise, call, expect_equal, guard
from exercises.judging.judge import When, expect_unchanged, judge

ALLOCATING = Diagnoses.of("p3e1_allocate")


def expect_error(work: Callable[[], Any], error: type[Exception], diagnosis: str, tried: str) -> None:
    """The call has to raise `error`. If it does anything else, that is what the diagnosis is about."""
    no = ALLOCATING.no(diagnosis, tried, expected=f"a {error.__name__}")
    try:
        no.got = call(work)
    except error:
        return
    except NotImplementedError:  # a stub: the framework says so
        raise
    except Exception as other:
        no.got = f"{type(other).__name__}: {other}"
        no.says = f"A {error.__name__} is asked for here, and this came: {type(other).__name__}."
    raise no


# ---------------------------------------------------------------------- 3.1 allocate and free


def grade_allocator(Allocator: type) -> str:
    _take_all(Allocator)
    _take_and_give_back(Allocator)
    _share_and_give_back(Allocator)
    _give_back_twice(Allocator)
    _give_back_to_the_end(Allocator)
    for seed in range(20):
        _random_requests(Allocator, seed)
    return "The example above, and 20 servers on which requests come, fork and end at random."


def _free(allocator: Any, tried: str) -> int:
    return guard(getattr, allocator, "num_free", tried=tried)


def _take_all(Allocator: type) -> None:
    tried = "a = Allocator(4), then a.take() three times"
    a = guard(Allocator, 4, tried=tried)
    taken = [guard(a.take, tried=tried) for _ in range(3)]
    if 0 in taken:
        raise ALLOCATING.no("null-block-given-out", tried, taken, [1, 2, 3])
    if len(set(taken)) < 3:
        raise ALLOCATING.no("block-given-out-twice", tried, taken, [1, 2, 3])
    expect_equal(sorted(taken), [1, 2, 3], tried=tried)
    if taken != [1, 2, 3]:
        raise ALLOCATING.no("takes-from-the-wrong-end", tried, taken, [1, 2, 3])
    expect_equal(_free(a, tried), 0, tried=tried + ", then a.num_free")
    expect_error(a.take, MemoryError, "wrong-end-of-memory", tried + ", and once more")


def _take_and_give_back(Allocator: type) -> None:
    tried = "a = Allocator(3); b = a.take(); a.give_back([b])"
    a = guard(Allocator, 3, tried=tried)
    b = guard(a.take, tried=tried)
    try:
        call(a.give_back, [b])
    except ValueError as error:
        raise ALLOCATING.no("taken-and-not-counted", tried, f"ValueError: {error}", "2 free blocks") from None
    _compare_free(a, 2, tried + "; a.num_free")


def _share_and_give_back(Allocator: type) -> None:
    tried = "a = Allocator(3); b = a.take(); a.share(b); a.give_back([b])"
    a = guard(Allocator, 3, tried=tried)
    b = guard(a.take, tried=tried)
    guard(a.share, b, tried=tried)
    guard(a.give_back, [b], tried=tried)
    _compare_free(a, 1, tried + "; a.num_free")
    tried += "; a.give_back([b])"
    guard(a.give_back, [b], tried=tried)
    _compare_free(a, 2, tried + "; a.num_free")


def _give_back_twice(Allocator: type) -> None:
    tried = "a = Allocator(4); b = a.take(); a.give_back([b]); a.give_back([b])"
    a = guard(Allocator, 4, tried=tried)
    b = guard(a.take, tried=tried)
    guard(a.give_back, [b], tried=tried)
    expect_error(lambda: a.give_back([b]), ValueError, "double-free", tried)
    a = guard(Allocator, 4, tried="Allocator(4)")
    tried = "a = Allocator(4); a.give_back([2])"
    expect_error(lambda: a.give_back([2]), ValueError, "double-free (never taken)", tried)
    for order in ("b, c", "c, b"):
        _refused_as_a_whole(Allocator, order)


def _refused_as_a_whole(Allocator: type, order: str) -> None:
    """b has two readers, c is free already, and a table that lists both is given back."""
    tried = (
        f"a = Allocator(4); b = a.take(); c = a.take(); a.share(b); a.give_back([c]); a.give_back([{order}])"
    )
    a = guard(Allocator, 4, tried=tried)
    b, c = guard(a.take, tried=tried), guard(a.take, tried=tried)
    guard(a.share, b, tried=tried)
    guard(a.give_back, [c], tried=tried)
    blocks = [b, c] if order == "b, c" else [c, b]
    expect_error(lambda: a.give_back(blocks), ValueError, "double-free (among others)", tried)
    tried += ", which raises; then a.give_back([b]) twice, for b has two readers; a.num_free"
    try:
        steps = [_free(a, tried)]
        for _ in range(2):
            call(a.give_back, [b])
            steps.append(_free(a, tried))
    except ValueError as error:
        steps.append(f"ValueError: {error}")
    if steps != [2, 2, 3]:
        raise ALLOCATING.no("refused-and-half-done", tried, f"free after each call: {steps}", [2, 2, 3])


def _give_back_to_the_end(Allocator: type) -> None:
    tried = "a = Allocator(4); b = a.take(); a.take(); a.give_back([b]); then a.take() twice"
    a = guard(Allocator, 4, tried=tried)
    b, _ = guard(a.take, tried=tried), guard(a.take, tried=tried)
    guard(a.give_back, [b], tried=tried)
    taken = [guard(a.take, tried=tried) for _ in range(2)]
    if taken == [b, 3]:
        raise ALLOCATING.no("gives-back-to-the-front", tried, taken, [3, b])
    expect_equal(taken, [3, b], tried=tried)


def _random_requests(Allocator: type, seed: int) -> None:
    """Requests come, fork and go. Who holds what is written down here as well."""
    rng, size = random.Random(seed), 12
    tried = f"{size - 1} blocks; requests come, fork and end, 60 times at random (seed {seed})"
    a = guard(Allocator, size, tried=tried)
    tables: list[list[int]] = []
    given: list[tuple[list[int], list[int]]] = []  # tables given back, as they were and as they are

    def held() -> set[int]:
        return {b for table in tables for b in table}

    for _ in range(60):
        what = rng.random()
        if what < 0.5 and len(held()) < size - 3:
            table = []
            for _ in range(rng.randint(1, 3)):
                block = guard(a.take, tried=tried)
                if block in held() or block in table:
                    raise ALLOCATING.no(
                        "block-given-out-twice",
                        tried,
                        f"block {block} again",
                        "a block that no request holds",
                    )
                table.append(block)
            tables.append(table)
        elif what < 0.7 and tables:
            twin = list(rng.choice(tables))
            for block in twin:
                guard(a.share, block, tried=tried)
            tables.append(twin)
        elif tables:
            table = tables.pop(rng.randrange(len(tables)))
            given.append((list(table), table))
            guard(a.give_back, table, tried=tried)
        _compare_free(a, size - 1 - len(held()), tried)
    while tables:
        guard(a.give_back, tables.pop(), tried=tried)
    _compare_free(a, size - 1, tried + ", and then all of them end")
    for was, now in given:
        expect_unchanged(a.give_back, [was], [now], tried)


def _compare_free(a: Any, expected: int, tried: str) -> None:
    free = _free(a, tried)
    if free != expected:
        diagnosis = "blocks-lost" if free < expected else "freed-while-shared"
        raise ALLOCATING.no(diagnosis, tried, f"{free} free", f"{expected} free")


# ---------------------------------------------------------------------- 3.2 block table lookup


def slots_of(table: list[int], first: int, n: int, size: int) -> list[int]:
    """As `ModelRunner.execute` works it out."""
    return [table[t // size] * size + t % size for t in range(first, first + n)]


def _blocks_of_16(got: list[int], want: list[int], table: list[int], first: int, n: int, size: int) -> bool:
    """Whether 16 stands in place of the block size, in one of the three places where it is needed."""
    return any(
        got == [table[min(t // a, len(table) - 1)] * b + t % c for t in range(first, first + n)]
        for a, b, c in itertools.product((16, size), repeat=3)
    )


SLOTS = {
    "logical-as-physical": lambda table, first, n, size: [
        t // size * size + t % size for t in range(first, first + n)
    ],
    "block-id-not-multiplied": lambda table, first, n, size: [
        table[t // size] + t % size for t in range(first, first + n)
    ],
    "starts-at-token-zero": lambda table, first, n, size: slots_of(table, 0, n, size),
    "runs-on-past-the-block": lambda table, first, n, size: [
        table[first // size] * size + first % size + i for i in range(n)
    ],
    "quotient-and-rest-swapped": lambda table, first, n, size: [
        (table[t % size] if t % size < len(table) else -1) * size + t // size for t in range(first, first + n)
    ],
    "one-token-late": lambda table, first, n, size: slots_of([*table, table[-1]], first + 1, n, size),
    "too-few-slots": When(lambda got, want, *_: len(got) < len(want)),
    "too-many-slots": When(lambda got, want, *_: len(got) > len(want)),
    "block-size-fixed": When(_blocks_of_16),
}
SLOTS_SAYS = Diagnoses.of("p3e2_block_table")


def grade_slots(slots: Callable[[list[int], int, int, int], list[int]]) -> str:
    cases = [([7, 3, 9, 2], 2, 5, 4), ([5], 0, 4, 4), ([2, 8], 7, 1, 4)]
    rng = random.Random(0)
    for _ in range(40):
        size, blocks = rng.choice([1, 4, 16]), rng.randint(1, 6)
        first = rng.randrange(size * blocks)
        n = rng.randint(1, size * blocks - first)
        cases.append((rng.sample(range(1, 50), blocks), first, n, size))
    judge(
        slots,
        cases,
        slots_of,
        SLOTS,
        SLOTS_SAYS,
        show=lambda table, first, n, size: (
            f"slots(block_table={table}, first={first}, num_tokens={n}, block_size={size})"
        ),
        clean=lambda result: [int(slot) for slot in result],
    )
    return f"{len(cases)} block tables, with blocks of 1, 4 and 16 tokens."


EXERCISES = [
    Exercise("p3e1_allocate", ("Allocator",), grade_allocator),
    Exercise("p3e2_block_table", ("slots",), grade_slots),
]
