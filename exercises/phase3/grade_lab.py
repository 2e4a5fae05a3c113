"""Grader of the debugging lab 3.D: a block that is free, and that a user still reads."""

import random
from typing import Any

from exercises.judging.judge import Exercise
from exercises.judging.scripts import first_is

SAME = [1, 2, 3, 4, 5, 6]
NINE = list(range(1, 10))
STEP = "m.start('alice', {0}); m.start('bob', {0}); m.compute('alice'); m.compute('bob'); m.remember('alice'); m.remember('bob')"
# For each block: how much more it counts than tables point to it, and how often it is free.
BOOKS = "[n - sum(table.count(b) for table in m.tables.values()) for b, n in enumerate(m.ref_count)]; max(map(m.free.count, m.free))"
SYMPTOM = (
    f"m = Manager(6); {STEP.format(SAME)}; {BOOKS}; m.start('dora', [7, 8, 9]); m.compute('dora'); m.end('dora')"
    "; m.start('carol', [70, 80, 90]); m.compute('carol'); m.read('bob'); m.read('alice'); m.read('carol')"
    "; m.end('alice'); m.end('carol'); m.end('bob'); sorted(m.free)"
)
FOUND_AGAIN = (
    f"m = Manager(12); {STEP.format(NINE)}; m.read('alice'); m.read('bob'); {BOOKS}; before = m.hits"
    f"; m.start('dave', {[*NINE, 10]}); m.hits - before > 1"
)


def _random_script(seed: int) -> str:
    """Users with common beginnings come, write and go; after each step all of them read."""
    rng = random.Random(seed)
    size = rng.choice([1, 2, 4])
    lines, texts = [f"m = Manager(60, {size})"], {}
    begins = [[rng.randrange(4) for _ in range(2 * size + 1)] for _ in range(3)]
    for step in range(40):
        if rng.random() < 0.5 and len(texts) < 5:
            new = [f"user {step}.{i}" for i in range(rng.randint(1, 3))]
            for user in new:
                texts[user] = rng.choice(begins) + [rng.randrange(4) for _ in range(rng.randint(0, size))]
            lines += [f"m.start({user!r}, {texts[user]})" for user in new]
            lines += [f"m.{method}({user!r})" for method in ("compute", "remember") for user in new]
        elif texts and rng.random() < 0.6:
            user = rng.choice(list(texts))
            if len(texts[user]) < 5 * size:
                texts[user] = [*texts[user], rng.randrange(4)]
                lines.append(f"m.write({user!r}, {texts[user][-1]})")
                lines += [f"m.remember({user!r})"] * (len(texts[user]) % size == 0)
        elif texts:
            gone = rng.choice(list(texts))
            lines.append(f"m.end({gone!r})")
            del texts[gone]
        lines += [f"m.read({user!r})" for user in texts] + [BOOKS]
    return "; ".join([*lines, *(f"m.end({user!r})" for user in texts), "sorted(m.free)"])


COUNTED, FOLLOWS, DROPPED = "self.point_to(same)", "table[i] = same", "self.drop(table[i])"
LAB = Exercise(
    "p3d1_freed_and_read",
    Manager={
        "pointed-to-and-not-counted": (
            {COUNTED: "pass"},
            first_is("[n - sum", lambda got, want: min(got) < 0),
        ),
        "duplicate-leaks": ({DROPPED: "pass"}, first_is("[n - sum"), first_is("sorted(m.free)")),
        "nothing-is-remembered": (  # the symptom is gone, and so is the cache
            {"table = self.tables[user]": "return self.cached.clear()"},
            first_is("m.hits"),
        ),
        "wrong-text": {FOLLOWS: "del table[i]; table.insert(0, same)"},
        "freed-twice": (
            {FOLLOWS: "self.free.append(table[i]); table[i] = same"},
            {COUNTED: "self.ref_count[same] += 1"},  # it may be free
            first_is("max("),
        ),
        "reads-anothers-text": (
            {COUNTED: "pass", FOLLOWS: "pass"},
            {  # repairs what the symptom shows, one block
                COUNTED: f"if i == 0:\n                    {COUNTED}",
                FOLLOWS: f"if i == 0:\n                    {FOLLOWS}",
            },
            first_is("m.read"),
        ),
    },
    cause={},
)


@LAB.grader
def grade_lab(manager: type, cause: Any) -> None:
    LAB.judge_scripts("Manager", manager, [SYMPTOM, FOUND_AGAIN, *map(_random_script, range(6))])
    LAB.judge_cause(cause)
