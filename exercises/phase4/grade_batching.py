"""Grader of exercise 4.4: static against continuous batching."""

import random
from collections.abc import Callable

from exercises.judging.solutions import Solution


def _shortest_first(lengths: list[int], max_num_seqs: int) -> list[int]:
    free, done = [0] * max_num_seqs, [0] * len(lengths)
    for user in sorted(range(len(lengths)), key=lengths.__getitem__):
        place = free.index(min(free))
        free[place] += lengths[user]
        done[user] = free[place]
    return done


ENDS, HANDED_OUT = "clock += max(batch)", "done += [clock] * len(batch)"
PLACE, TAKEN, LOOP = (
    "free_after.index(min(free_after))",
    "free_after[place] += length",
    "    for length in lengths:",
)
EXERCISE = Solution(
    "p4e4_static_continuous",
    static={
        "hands-out-early": {HANDED_OUT: "done += [clock - max(batch) + n for n in batch]"},
        "adds-up": {ENDS: "clock += sum(batch)"},
        "clock-starts-anew": {ENDS: "clock = max(batch)"},
        "first-of-the-batch": {ENDS: "clock += batch[0]"},
    },
    continuous={
        "waits-for-the-batch": {
            LOOP: """    for user, length in enumerate(lengths):
        if user % max_num_seqs == 0:
            free_after = [max(free_after)] * max_num_seqs"""
        },
        "place-empty-for-a-step": {TAKEN: f"{TAKEN} + (free_after[place] > 0)"},
        "two-in-a-place": (
            {TAKEN: "free_after[place] = max(free_after[place] - 1, 0) + length"},
            {TAKEN: f"{TAKEN} - (free_after[place] > 0)"},
        ),
        "shortest-first": _shortest_first,
        "fixed-places": {PLACE: "len(done) % max_num_seqs"},
    },
)


@EXERCISE.grader
def grade_static_continuous(static: Callable, continuous: Callable) -> None:
    rng = random.Random(4)
    cases = [([5, 2, 3], 2), ([500, 10, 800], 3), ([4, 4, 4, 4], 2), ([3, 9, 2, 7, 1], 2)]
    cases += [([rng.randint(1, 30) for _ in range(rng.randint(1, 9))], rng.randint(1, 4)) for _ in range(100)]
    EXERCISE.judge("static", static, cases)
    EXERCISE.judge("continuous", continuous, cases)
