"""Grader of the debugging lab 3.D: a block that is free, and that somebody still reads."""

from __future__ import annotations

import random
from typing import Any

from exercises.grading import NotAttempted, NotYet, guard

THE_CAUSE = 3

FREED = "{} reads {}'s tokens. Which block does {} table name, and who took it?"
FREE_AND_NAMED = "A table names a block that is free. Who may be the next to take it?"
UNCOUNTED = (
    "A table points to a block that does not count it. When the others have ended, the block is free, and this user "
    "still reads it."
)
LEAK = "All users have ended, and blocks are missing from the free list: a count stayed above 0."


def sentence_number(cause: Any, most: int = 5) -> int:
    """The number of a sentence; "3" is as good as 3.

    Raises:
        NotAttempted: nothing is chosen yet. NotYet: it is no number from 1 to `most`.
    """
    if cause is None or cause is Ellipsis:
        raise NotAttempted("Find the cause first: which of the five sentences is it?")
    number = str(cause).strip().rstrip(".")
    if number not in map(str, range(1, most + 1)):
        says = f"`cause` is the number of a sentence: a number from 1 to {most}, without quotes."
        raise NotYet("wrong-type", says, "cause", repr(cause), f"a number from 1 to {most}")
    return int(number)


def grade_lab(Manager: type, cause: Any) -> str:
    number = sentence_number(cause)
    _the_symptom(Manager)
    _the_cache_still_works(Manager)
    for seed in range(30):
        _random_users(Manager, seed)
    if number != THE_CAUSE:
        raise NotYet(
            diagnosis="another-cause",
            says="The manager is right now, but the sentence is not the one that says what was wrong. Play the symptom "
            "through with pencil and paper, and write down who points to which block after each line.",
            tried="cause", got=repr(cause), expected="the number of another sentence",
        )  # fmt: skip
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
    """Everybody reads their own text, and the books agree."""
    pointing = [0] * len(m.ref_count)
    for table in m.tables.values():
        for block in table:
            pointing[block] += 1
    for user in m.tables:
        if (reads := guard(m.read, user, tried=tried)) != m.texts[user]:
            counted = all(m.ref_count[b] >= pointing[b] for b in m.tables[user])
            raise NotYet(
                diagnosis="wrong-text" if counted else "reads-anothers-text",
                says=f"{user} does not read its own text. Its table leads to other blocks than before."
                if counted else FREED.format(user, "somebody else", "its"),
                tried=tried, got=f"{user} reads {reads}", expected=f"{user} reads {m.texts[user]}",
            )  # fmt: skip
    for block, n in enumerate(pointing):
        if n and block in m.free:
            raise NotYet(
                diagnosis="reads-anothers-text", says=FREE_AND_NAMED, tried=tried,
                got=f"block {block} is in the free list, and {n} of the tables point to it", expected="one or the other",
            )  # fmt: skip
        if n > m.ref_count[block]:
            raise NotYet(
                diagnosis="pointed-to-and-not-counted", says=UNCOUNTED, tried=tried,
                got=f"block {block}: {n} tables, a count of {m.ref_count[block]}", expected="a count for each table",
            )  # fmt: skip
        if n < m.ref_count[block]:
            raise NotYet(
                diagnosis="duplicate-leaks", says="A block counts a table that does not point to it any more, so it "
                "can never become free. Each merge loses a block.", tried=tried,
                got=f"block {block}: {n} tables, a count of {m.ref_count[block]}", expected="a count for each table",
            )  # fmt: skip


def _the_symptom(Manager: type) -> None:
    tried = "alice and bob start with the same six tokens in one step; dora comes and goes; carol comes; bob reads"
    m = guard(Manager, 6, tried=tried)
    same = [1, 2, 3, 4, 5, 6]
    for user in ("alice", "bob"):
        guard(m.start, user, same, tried=tried)
    for user in ("alice", "bob"):
        guard(m.compute, user, tried=tried)
    for user in ("alice", "bob"):
        guard(m.remember, user, tried=tried)
    _nothing_twice(m, tried)
    guard(m.start, "dora", [7, 8, 9], tried=tried)
    guard(m.compute, "dora", tried=tried)
    guard(m.end, "dora", tried=tried)
    guard(m.start, "carol", [70, 80, 90], tried=tried)
    guard(m.compute, "carol", tried=tried)
    if (reads := guard(m.read, "bob", tried=tried)) != same:
        says = FREED.format("bob", "carol", "his")
        raise NotYet(diagnosis="reads-anothers-text", says=says, tried=tried, got=reads, expected=same)
    _look(m, tried)
    for user in ("alice", "carol", "bob"):
        guard(m.end, user, tried=tried)
    _all_free(m, tried + "; then all of them end")


def _all_free(m: Any, tried: str) -> None:
    _nothing_twice(m, tried)
    free = sorted(m.free)
    if free != list(range(1, len(m.ref_count))):
        raise NotYet(
            diagnosis="duplicate-leaks", says=LEAK,
            tried=tried, got=f"free: {free}", expected=f"free: {list(range(1, len(m.ref_count)))}",
        )  # fmt: skip


def _nothing_twice(m: Any, tried: str) -> None:
    if len(set(m.free)) < len(m.free):
        raise NotYet(
            diagnosis="freed-twice", says="A block is twice in the free list: two requests will get it.",
            tried=tried, got=f"free: {list(m.free)}", expected="each block once",
        )  # fmt: skip


def _the_cache_still_works(Manager: type) -> None:
    tried = (
        "alice and bob start with the same nine tokens in one step; dave comes later with these and one more"
    )
    m = guard(Manager, 12, tried=tried)
    same = list(range(1, 10))
    _step(m, {"alice": same, "bob": same}, tried)
    before = m.hits
    _step(m, {"dave": [*same, 10]}, tried)
    if m.hits - before < 2:
        raise NotYet(
            diagnosis="nothing-is-remembered", tried=tried, got=f"{m.hits - before} blocks found", expected="2 blocks found",
            says="Nobody reads another's text any more, for nobody finds anything: the blocks are not in the cache. The "
            "symptom is gone, and so is what the cache was for.",
        )  # fmt: skip


def _random_users(Manager: type, seed: int) -> None:
    rng = random.Random(seed)
    size = rng.choice([1, 2, 4])
    tried = f"users with common beginnings come, write and go at random, blocks of {size} (seed {seed})"
    m = guard(Manager, 60, size, tried=tried)
    begins = [[rng.randrange(4) for _ in range(2 * size + 1)] for _ in range(3)]
    for step in range(40):
        alive = list(m.tables)
        if rng.random() < 0.5 and len(alive) < 5:
            texts = {}
            for i in range(rng.randint(1, 3)):
                tail = [rng.randrange(4) for _ in range(rng.randint(0, size))]
                texts[f"user {step}.{i}"] = rng.choice(begins) + tail
            _step(m, texts, tried)
        elif alive and rng.random() < 0.6:
            user = rng.choice(alive)
            if len(m.texts[user]) < 5 * size:
                guard(m.write, user, rng.randrange(4), tried=tried)
                if len(m.texts[user]) % size == 0:
                    guard(m.remember, user, tried=tried)
            _look(m, tried)
        elif alive:
            guard(m.end, rng.choice(alive), tried=tried)
            _look(m, tried)
    for user in list(m.tables):
        guard(m.end, user, tried=tried)
    _all_free(m, tried + "; then all of them end")
