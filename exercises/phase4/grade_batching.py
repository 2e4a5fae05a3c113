"""Grader of exercise 4.4: static against continuous batching."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from exercises.grading import NotYet
from exercises.phase4.mistakes import name_the_mistake


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
    free, done = [0] * seats, [0] * len(lengths)
    order = (
        sorted(range(len(lengths)), key=lambda i: lengths[i])
        if mistake == "shortest-first"
        else range(len(lengths))
    )
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
    if result is None:
        raise NotYet(
            "returns-nothing", "None came back. Is a `return` missing?", expected="a list of step numbers"
        )
    try:
        return [int(n) if n == int(n) else n for n in result]
    except (TypeError, ValueError):
        raise NotYet(
            "wrong-type",
            "A list is asked for, with a step number for each user.",
            got=repr(result)[:200],
            expected="[5, 2, 5]",
        ) from None


def grade_static_continuous(static: Callable, continuous: Callable) -> str:
    rng = random.Random(4)
    cases = [([5, 2, 3], 2), ([500, 10, 800], 3), ([4, 4, 4, 4], 2), ([3, 9, 2, 7, 1], 2)]
    cases += [([rng.randint(1, 30) for _ in range(rng.randint(1, 9))], rng.randint(1, 4)) for _ in range(100)]

    def tried(lengths, seats):
        return f"answers of {lengths} tokens, {seats} seats"

    def wrong(function: Callable, mistake: str) -> Callable:
        return lambda *args: function(*args, mistake=mistake)

    name_the_mistake(
        static, cases, _static,
        {
            "hands-out-early": (
                wrong(_static, "hands-out-early"),
                "An answer is handed out as soon as it is written. A static batch hands out when its longest answer is done.",
            ),
            "adds-up": (
                wrong(_static, "adds-up"),
                "A batch takes as many steps as all its answers together. But a step writes a token for everybody in it.",
            ),
            "clock-starts-anew": (
                wrong(_static, "clock-starts-anew"), "The clock starts anew with each batch: the second one waits for the first.",
            ),
            "first-of-the-batch": (
                wrong(_static, "first-of-the-batch"), "A batch ends with the answer that stands first in it; it is the longest that counts.",
            ),
        },
        lambda *args: "static: " + tried(*args), clean=as_steps,
    )  # fmt: skip
    name_the_mistake(
        continuous, cases, _continuous,
        {
            "waits-for-the-batch": (
                wrong(_continuous, "waits-for-the-batch"),
                "Nobody gets a seat until all of the batch are done. A free seat is taken in the very next step.",
            ),
            "seat-empty-for-a-step": (
                wrong(_continuous, "seat-empty-for-a-step"), "A seat stays empty for a step between two users.",
            ),
            "two-on-a-seat": (
                wrong(_continuous, "two-on-a-seat"),
                "A seat serves two users in one step: whoever takes it begins in the step after the last one's last.",
            ),
            "shortest-first": (
                wrong(_continuous, "shortest-first"), "The shortest answer goes first. Nobody knows beforehand which one that will be.",
            ),
            "fixed-seats": (
                wrong(_continuous, "fixed-seats"),
                "Users wait for a certain seat (their number modulo the seats), though another one is free before.",
            ),
        },
        lambda *args: "continuous: " + tried(*args), clean=as_steps,
    )  # fmt: skip
    return f"{len(cases)} crowds of up to nine users, with one to four seats."
