"""Grader of exercise 4.4: static against continuous batching."""

import random
from collections.abc import Callable
from typing import Any

from exercises.grading import Diagnoses, Exercise, NotYet
from exercises.judging.judge import judge, variants
from exercises.phase4.visitors import BY_HAND

STATIC = Diagnoses.of("p4e4_static_continuous static")
CONTINUOUS = Diagnoses.of("p4e4_static_continuous continuous")


def _static(lengths, seats, mistake=""):
    done, clock = [], 0
    for start in range(0, len(lengths), seats):
        batch = lengths[start : start + seats]
        if mistake == "hands-out-early":
            done += [clock + n for n in batch]
        clock += {"adds-up": sum(batch), "first-of-the-batch": batch[0]}.get(mistake, max(batch))
        if mistake != "hands-out-early":
            done += [clock] * len(batch)
    if mistake == "clock-starts-anew":
        done = [max(lengths[i // seats * seats : i // seats * seats + seats]) for i in range(len(lengths))]
    return done


def _continuous(lengths, seats, mistake=""):
    if mistake == "waits-for-the-batch":
        return _static(lengths, seats, "hands-out-early")
    free, done, order = [0] * seats, [0] * len(lengths), range(len(lengths))
    if mistake == "shortest-first":
        order = sorted(order, key=lambda i: lengths[i])
    for turn, i in enumerate(order):
        seat = turn % seats if mistake == "fixed-seats" else free.index(min(free))
        begin = free[seat]
        if begin and mistake == "seat-empty-for-a-step":
            begin += 1
        if begin and mistake == "two-on-a-seat":
            begin -= 1
        free[seat] = done[i] = begin + lengths[i]
    return done


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
    for name, answer, right, says in (
        ("static", static, _static, STATIC),
        ("continuous", continuous, _continuous, CONTINUOUS),
    ):
        judge(
            answer,
            cases,
            right,
            variants(right, says),
            says,
            show=lambda lengths, seats, name=name: f"{name}: answers of {lengths} tokens, {seats} seats",
            clean=as_steps,
            otherwise=BY_HAND,
        )
    return f"{len(cases)} crowds of up to nine users, with one to four seats."


EXERCISES = [
    Exercise("p4e4_static_continuous", ("static", "continuous"), grade_static_continuous),
]
