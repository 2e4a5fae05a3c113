"""Grader of exercise 4.3: a long prompt in pieces."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from exercises.grading import NotYet
from exercises.phase4.mistakes import name_the_mistake
from exercises.phase4.visitors import NAMES, Visitor, as_plan, show_plan


def _tokens_now(request, budget, threshold, alone, chunked, mistake=""):
    n = request.num_tokens - (0 if mistake == "begins-anew" else request.num_computed_tokens)
    if mistake == "waits-before-the-threshold" and n > budget and not chunked:
        return 0
    if (threshold or mistake == "threshold-of-nothing") and (
        not alone or mistake == "threshold-for-one-alone"
    ):
        n = min(n, threshold)
    if mistake == "threshold-only-with-chunks" and not chunked:
        n = request.num_tokens - request.num_computed_tokens
    if n > budget and not chunked and mistake != "cuts-anyway":
        return 0
    return n if mistake == "over-the-budget" else min(n, budget)


def as_count(result: Any) -> Any:
    if result is None:
        raise NotYet(
            "returns-nothing",
            "None came back. Is a `return` missing, in one of the cases?",
            expected="a number of tokens",
        )
    return result


def grade_chunks(tokens_now: Callable, admit: Callable) -> str:
    rng = random.Random(3)
    v = Visitor
    cases = [
        (v("Lea", 400), 64, 32, False, True),
        (v("Lea", 400), 64, 0, False, True),
        (v("Lea", 400), 64, 32, True, True),
        (v("Lea", 400, 390), 64, 32, False, True),
        (v("Lea", 400), 64, 0, False, False),
        (v("Lea", 60), 64, 0, False, False),
        (v("Lea", 100), 64, 32, False, False),
    ]
    for _ in range(150):
        tokens = rng.randint(1, 100)
        cases.append(
            (
                v("Lea", tokens, rng.choice((0, 0, rng.randrange(tokens)))), rng.randint(1, 80), rng.choice((0, 0, 8, 30)),
                rng.random() < 0.3, rng.random() < 0.6,
            )
        )  # fmt: skip

    def wrong(mistake: str) -> Callable:
        return lambda *args: _tokens_now(*args, mistake=mistake)

    mistakes = {
        "begins-anew": (
            wrong("begins-anew"),
            "Every piece begins at the first token again: what is computed already does not count any more.",
        ),
        "threshold-for-one-alone": (
            wrong("threshold-for-one-alone"),
            "The threshold holds although nobody else is there. It protects others; who is alone disturbs nobody.",
        ),
        "threshold-of-nothing": (wrong("threshold-of-nothing"), "A threshold of 0 means that there is none; here nobody gets a token."),
        "cuts-anyway": (wrong("cuts-anyway"), "Prompts may not be cut (chunked is False), and this one was."),
        "over-the-budget": (wrong("over-the-budget"), "The piece is larger than the budget of the step."),
        "threshold-only-with-chunks": (
            wrong("threshold-only-with-chunks"),
            "Where the budget may not cut, the threshold does not count either here. But it always comes first.",
        ),
        "waits-before-the-threshold": (
            wrong("waits-before-the-threshold"),
            "It waits, though the piece that the threshold allows would fit: the threshold comes first, then the budget.",
        ),
    }  # fmt: skip

    def tried(request, budget, threshold, alone, chunked):
        return f"{request} (computed/tokens), budget {budget}, threshold {threshold}, alone {alone}, chunked {chunked}"

    name_the_mistake(tokens_now, cases, _tokens_now, mistakes, tried, clean=as_count)
    _grade_admit(admit, rng)
    return f"{len(cases)} requests one by one, and 103 queues."


def _admit(waiting, budget, threshold, alone, chunked, mistake=""):
    plan, left = [], budget
    for request in waiting:
        n = _tokens_now(request, left, threshold, alone, chunked)
        if n == 0:
            if mistake == "jumps-the-queue":
                continue
            if mistake != "parts-of-nothing":
                break
        plan.append((request, n))
        if mistake != "budget-per-request":
            left -= n
        if mistake == "one-at-a-time":
            break
    return plan


def _grade_admit(admit: Callable, rng: random.Random) -> None:
    cases = [
        ([Visitor("Lea", 400), Visitor("Tom", 3)], 64, 32, False, True),
        ([Visitor("Lea", 400), Visitor("Tom", 3)], 64, 0, False, True),
        ([Visitor("Lea", 400), Visitor("Tom", 3)], 64, 0, False, False),
    ]
    for _ in range(100):
        waiting = [Visitor(name, rng.randint(1, 60)) for name in NAMES[: rng.randint(0, 5)]]
        alone = len(waiting) == 1 and rng.random() < 0.5
        cases.append((waiting, rng.randint(1, 90), rng.choice((0, 10, 25)), alone, rng.random() < 0.6))

    def wrong(mistake: str) -> Callable:
        return lambda *args: _admit(*args, mistake=mistake)

    mistakes = {
        "jumps-the-queue": (
            wrong("jumps-the-queue"),
            "Somebody passes a request that has to wait. If short ones always pass, a long one waits for ever.",
        ),
        "budget-per-request": (wrong("budget-per-request"), "Each gets a piece of the whole budget: what is given out has to be taken off."),
        "parts-of-nothing": (wrong("parts-of-nothing"), "A request is admitted with 0 tokens."),
        "one-at-a-time": (wrong("one-at-a-time"), "Only the head of the queue is admitted, though there is budget left."),
    }  # fmt: skip
    name_the_mistake(
        admit, cases, _admit, mistakes, clean=as_plan, show=show_plan,
        tried=lambda w, b, t, a, c: f"waiting {w}, budget {b}, threshold {t}, alone {a}, chunked {c}",
    )  # fmt: skip
