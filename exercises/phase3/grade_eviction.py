"""Grader of exercise 3.4: which block is forgotten first."""

import random

from exercises.judging.solutions import Solution

FIVE = "; ".join(["f.take()"] * 5)
SCRIPTS = [
    "f = FreeList([1, 2, 3]); f.take(); f.take(); f.take()",
    *(f"f = FreeList([4, 5]); f.give_back([1, 2, 3], {num_full}); {FIVE}" for num_full in (3, 2, 1)),
    f"f = FreeList([4, 5]); f.give_back([1, 2, 3], 3); f.hit(2); f.give_back([6], 1); {FIVE}",
    "f = FreeList([4, 5]); t = [1, 2, 3]; f.give_back(t, 2); t",
]

ROW, LEAVES = "nameless[::-1] + self.blocks + named[::-1]", "self.blocks.remove(block)"
EXERCISE = Solution(
    "p3e4_eviction",
    FreeList={
        "evicts-most-recent": ({"pop(0)": "pop()"}, {ROW: "table[::-1] + self.blocks"}),
        "head-evicted-first": {"[::-1]": ""},
        "nameless-kept": ({ROW: "self.blocks + table[::-1]"}, {ROW: "self.blocks + named[::-1] + nameless"}),
        "nameless-turned-round": {"nameless[::-1]": "nameless"},
        # As in an LRU cache that keeps what is in use; and a hit that does nothing.
        "hit-still-free": ({LEAVES: f"{LEAVES}\n        self.blocks.append(block)"}, {LEAVES: "pass"}),
        "changes-its-input": {ROW: f"{ROW}\n        table.clear()"},
    },
)


def _random_script(seed: int) -> str:
    """Takes, hits and returns; the tables hold what the right order gives."""
    rng, lines = random.Random(seed), [f"f = FreeList({list(range(1, 14))})"]
    right, held = EXERCISE.answers["FreeList"](list(range(1, 14))), []
    for _ in range(80):
        what = rng.random()
        if what < 0.45 and len(right.blocks) > 3:
            held.append([right.take() for _ in range(rng.randint(1, 3))])
            lines += ["f.take()"] * len(held[-1])
        elif what < 0.6 and len(right.blocks) > 3:
            held.append([rng.choice(right.blocks)])
            right.hit(held[-1][0])
            lines.append(f"f.hit({held[-1][0]})")
        elif held:
            table = held.pop(rng.randrange(len(held)))
            num_full = rng.randint(0, len(table))
            right.give_back(table, num_full)
            lines.append(f"f.give_back({table}, {num_full})")
    return "; ".join([*lines, *["f.take()"] * len(right.blocks)])


@EXERCISE.grader
def grade_free_list(free_list: type) -> None:
    EXERCISE.judge_scripts("FreeList", free_list, [*SCRIPTS, *map(_random_script, range(20))])
