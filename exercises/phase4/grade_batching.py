"""Grader of exercise 4.4: static against continuous batching."""

import random
from collections.abc import Callable
from typing import Any

from exercises.grading import Diagnoses, Exercise, NotYet
from exercises.judging.judge import judge
from exercises.judging.slips import changed, slips
from exercises.phase4.small_requests import BY_HAND

STATIC = Diagnoses.of("p4e4_static_continuous static")
CONTINUOUS = Diagnoses.of("p4e4_static_continuous continuous")


def _static(lengths, seats):
    done, clock = [], 0
    for start in range(0, len(lengths), seats):
        batch = lengths[start : start + seats]
        clock += max(batch)
        done += [clock] * len(batch)
    return done


STATIC_WRONG = {
    "hands-out-early": {"[clock] * len(batch)": "[clock - max(batch) + n for n in batch]"},
    "adds-up": {"max(batch)": "sum(batch)"},
    "clock-starts-anew": {"clock += ": "clock = "},
    "first-of-the-batch": {"max(batch)": "batch[0]"},
}


def _continuous(lengths, seats):
    free, done, order = [0] * seats, [0] * len(lengths), range(len(lengths))
    for i in order:
        seat = free.index(min(free))
        free[seat] += lengths[i]
        done[i] = free[seat]
    return done


TAKEN = "free[seat] += lengths[i]"
CONTINUOUS_WRONG = {
    "waits-for-the-batch": changed(_static, STATIC_WRONG["hands-out-early"]),
    "seat-empty-for-a-step": {TAKEN: f"{TAKEN} + (free[seat] > 0)"},
    "two-on-a-seat": {TAKEN: f"{TAKEN} - (free[seat] > 0)"},
    "shortest-first": {"range(len(lengths))": "sorted(range(len(lengths)), key=lengths.__getitem__)"},
    "fixed-seats": {"free.index(min(free))": "i % seats"},
}


def as_steps(result: Any) -> list[int]:
    try:
        return [int(n) if n == int(n) else n for n in result]
    except (TypeError, ValueError):
        says = "A list is asked for, with a step number for each user."
        raise NotYet("wrong-type", says, got=repr(result)[:200], expected="[5, 2, 5]") from None


def grade_static_continuous(static: Callable, continuous: Callable) -> str:
    rng = random.Random(4)
    cases = [([5, 2, 3], 2), ([500, 10, 800], 3), ([4, 4, 4, 4], 2), ([3, 9, 2, 7, 1], 2)]
    cases += [([rng.randint(1, 30) for _ in range(rng.randint(1, 9))], rng.randint(1, 4)) for _ in range(100)]
    for name, answer, right, wrong, says in (
        ("static", static, _static, STATIC_WRONG, STATIC),
        ("continuous", continuous, _continuous, CONTINUOUS_WRONG, CONTINUOUS),
    ):
        judge(
            answer,
            cases,
            right,
            slips(right, wrong),
            says,
            show=lambda lengths, seats, name=name: f"{name}: answers of {lengths} tokens, {seats} seats",
            clean=as_steps,
            otherwise=BY_HAND,
        )
    return f"{len(cases)} crowds of up to nine users, with one to four seats."


EXERCISES = [
    Exercise("p4e4_static_continuous", ("static", "continuous"), grade_static_continuous),
]
