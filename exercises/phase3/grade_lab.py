"""Grader of the debugging lab 3.D: a block that is free, and that a user still reads."""

import random
from typing import Any

from exercises.grading import Diagnoses, Exercise, guard, look
from exercises.judging.judge import sentence_number

SAYS = Diagnoses.of("p3d1_freed_and_read")

THE_CAUSE = 3


def grade_lab(Manager: type, cause: Any) -> str:
    number = sentence_number(cause)
    _the_symptom(Manager)
    _the_cache_still_works(Manager)
    for seed in range(30):
        _random_users(Manager, seed)
    if number != THE_CAUSE:
        raise SAYS.no("another-cause", "cause", repr(cause), "the number of another sentence")
    return "The symptom is gone, the cache still finds things, and the books agreed after each of 1,200 random calls."


def _step(m: Any, users: dict[str, list[int]], tried: str) -> None:
    """Some users start in one step."""
    for user, text in users.items():
        guard(m.start, user, list(text), tried=tried)
    for user in users:
        guard(m.compute, user, tried=tried)
    for user in users:
        guard(m.remember, user, tried=tried)
    _look(m, tried)


def _look(m: Any, tried: str) -> None:
    """Every user reads their own text, and the books agree."""
    tables, texts, ref_count, free = look(m, "tables", "texts", "ref_count", "free")
    pointing = [sum(table.count(block) for table in tables.values()) for block in range(len(ref_count))]
    for user in tables:
        if (reads := guard(m.read, user, tried=tried)) != texts[user]:
            counted = all(ref_count[b] >= pointing[b] for b in tables[user])
            diagnosis = "wrong-text" if counted else "reads-anothers-text"
            got, expected = f"{user} reads {reads}", f"{user} reads {texts[user]}"
            raise SAYS.no(diagnosis, tried, got, expected, user=user, other="another user", its="its")
    for block, n in enumerate(pointing):
        if n and block in free:
            got = f"block {block} is in the free list, and {n} of the tables point to it"
            raise SAYS.no("reads-anothers-text (free)", tried, got, "one or the other")
        if n != (count := ref_count[block]):
            diagnosis = "pointed-to-and-not-counted" if n > count else "duplicate-leaks (counted)"
            got = f"block {block}: {n} tables, a count of {count}"
            raise SAYS.no(diagnosis, tried, got, "a count for each table")


def _the_symptom(Manager: type) -> None:
    tried = "alice and bob start with the same six tokens in one step; dora comes and goes; carol comes; bob reads"
    m = guard(Manager, 6, tried=tried)
    same = [1, 2, 3, 4, 5, 6]
    for method, *text in ((m.start, same), (m.compute,), (m.remember,)):
        for user in ("alice", "bob"):
            guard(method, user, *text, tried=tried)
    _nothing_twice(m, tried)
    guard(m.start, "dora", [7, 8, 9], tried=tried)
    guard(m.compute, "dora", tried=tried)
    guard(m.end, "dora", tried=tried)
    guard(m.start, "carol", [70, 80, 90], tried=tried)
    guard(m.compute, "carol", tried=tried)
    if (reads := guard(m.read, "bob", tried=tried)) != same:
        raise SAYS.no("reads-anothers-text", tried, reads, same, user="bob", other="carol", its="his")
    _look(m, tried)
    for user in ("alice", "carol", "bob"):
        guard(m.end, user, tried=tried)
    _all_free(m, tried + "; then all of them end")


def _all_free(m: Any, tried: str) -> None:
    _nothing_twice(m, tried)
    free, ref_count = look(m, "free", "ref_count")
    if sorted(free) != (wanted := list(range(1, len(ref_count)))):
        raise SAYS.no("duplicate-leaks", tried, f"free: {sorted(free)}", f"free: {wanted}")


def _nothing_twice(m: Any, tried: str) -> None:
    if len(set(free := look(m, "free"))) < len(free):
        raise SAYS.no("freed-twice", tried, f"free: {list(free)}", "each block once")


def _the_cache_still_works(Manager: type) -> None:
    tried = (
        "alice and bob start with the same nine tokens in one step; dave comes later with these and one more"
    )
    m = guard(Manager, 12, tried=tried)
    same = list(range(1, 10))
    _step(m, {"alice": same, "bob": same}, tried)
    before = look(m, "hits")
    _step(m, {"dave": [*same, 10]}, tried)
    if (found := look(m, "hits") - before) < 2:
        raise SAYS.no("nothing-is-remembered", tried, f"{found} blocks found", "2 blocks found")


def _random_users(Manager: type, seed: int) -> None:
    rng = random.Random(seed)
    size = rng.choice([1, 2, 4])
    tried = f"users with common beginnings come, write and go at random, blocks of {size} (seed {seed})"
    m = guard(Manager, 60, size, tried=tried)
    begins = [[rng.randrange(4) for _ in range(2 * size + 1)] for _ in range(3)]
    for step in range(40):
        tables, users = look(m, "tables", "texts")
        alive = list(tables)
        if rng.random() < 0.5 and len(alive) < 5:
            texts = {}
            for i in range(rng.randint(1, 3)):
                tail = [rng.randrange(4) for _ in range(rng.randint(0, size))]
                texts[f"user {step}.{i}"] = rng.choice(begins) + tail
            _step(m, texts, tried)
        elif alive and rng.random() < 0.6:
            user = rng.choice(alive)
            if len(text := users[user]) < 5 * size:
                guard(m.write, user, rng.randrange(4), tried=tried)
                if (len(text) + 1) % size == 0:
                    guard(m.remember, user, tried=tried)
            _look(m, tried)
        elif alive:
            guard(m.end, rng.choice(alive), tried=tried)
            _look(m, tried)
    for user in look(m, "tables"):
        guard(m.end, user, tried=tried)
    _all_free(m, tried + "; then all of them end")


EXERCISES = [
    Exercise("p3d1_freed_and_read", ("Manager", "cause"), grade_lab),
]
