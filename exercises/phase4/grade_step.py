"""Grader of exercise 4.1: one step, one budget."""

from __future__ import annotations

import random
from collections.abc import Callable

from exercises.grading import NotYet
from exercises.phase4.mistakes import name_the_mistake
from exercises.phase4.visitors import NAMES, Visitor, as_plan, show_plan


def _one_step(running, waiting, budget, seats, mistake=""):
    whole, plan, left = budget, [], seats - (0 if mistake == "seats-ignored" else len(running))

    def lag(request):
        return request.num_tokens - (0 if mistake == "lag-ignores-computed" else request.num_computed_tokens)

    def run():
        nonlocal budget
        for request in running:
            n = min(lag(request), whole if mistake == "budget-per-request" else budget)
            if mistake == "one-token-for-those-who-run":
                n = min(n, 1)
            if n > 0 or mistake == "parts-of-nothing":
                plan.append((request, n))
                budget -= n

    if mistake != "waiting-first":
        run()
    if mistake == "idle-seats-given-away":
        left = seats - len(plan)
    for request in waiting:
        if left <= 0 or (budget <= 0 and mistake not in ("budget-per-request", "parts-of-nothing")):
            break
        n = min(lag(request), whole if mistake == "budget-per-request" else budget)
        if mistake in ("whole-prompts-only", "jumps-the-queue") and lag(request) > budget:
            if mistake == "jumps-the-queue":
                continue
            break
        plan.append((request, n))
        budget -= n
        left -= 1
    if mistake == "waiting-first":
        run()
    return plan


def _ignore_seats(running, waiting, budget, seats):
    return _one_step(running, waiting, budget, 10**6)


def _unchanged(before: tuple, after: tuple) -> None:
    """The requests are to stay as they are, and so are the lists."""
    (running, waiting, *_), (running_now, waiting_now, *_) = before, after
    if [r.name for r in running_now] != [r.name for r in running] or len(waiting_now) != len(waiting):
        raise NotYet(
            "changes-the-lists", "Somebody was moved from one list to another, or out of one. The plan is only a proposal: the "
            "engine moves the requests when the step is done.", tried=f"running {running}, waiting {waiting}",
            got=f"running {running_now}, waiting {waiting_now}", expected="the same lists as before",
        )  # fmt: skip
    for a, b in zip([*running, *waiting], [*running_now, *waiting_now]):
        if (a.num_tokens, a.num_computed_tokens) != (b.num_tokens, b.num_computed_tokens):
            raise NotYet(
                "changes-the-requests", f"{a.name} was changed. The plan is only a proposal: the engine moves "
                "num_computed_tokens on when the step is done.",
                tried=f"running {running}, waiting {waiting} (computed/tokens)", got=repr(b), expected=repr(a),
            )  # fmt: skip


def grade_one_step(share_budget: Callable) -> str:
    rng = random.Random(1)
    v = Visitor
    cases: list[tuple] = [
        ([v("Ann", 10, 9), v("Ben", 5, 4)], [v("Lea", 40), v("Tom", 3)], 16, 4),
        ([v("Ann", 10, 9), v("Lea", 40, 14)], [v("Tom", 3)], 16, 4),
        ([v("Ann", 10, 9), v("Ben", 5, 4)], [v("Cal", 4), v("Dan", 3)], 16, 3),
        ([v("Ann", 10, 10), v("Ben", 5, 4)], [], 16, 3),
        ([], [], 16, 3),
    ]
    for _ in range(150):
        names = iter(NAMES)
        running = [
            v(next(names), n, n - rng.choice((0, 1, 1, 1, min(n, 12)))) for n in rng.choices(range(2, 40), k=rng.randint(0, 3))
        ]  # fmt: skip
        waiting = [v(next(names), rng.randint(1, 30)) for _ in range(rng.randint(0, 4))]
        cases.append((running, waiting, rng.randint(1, 40), len(running) + rng.randint(0, 3)))

    def wrong(mistake: str) -> Callable:
        return lambda *args: _one_step(*args, mistake=mistake)

    mistakes = {
        "budget-per-request": (
            wrong("budget-per-request"),
            "Everybody gets up to the whole budget. There is one budget for all: what one takes, the others have no more.",
        ),
        "lag-ignores-computed": (
            wrong("lag-ignores-computed"),
            "Everybody gets all of its tokens once more. What went through the model already (num_computed_tokens) is not missing.",
        ),
        "waiting-first": (
            wrong("waiting-first"),
            "Those who wait are served before those who run. Then a flood of new requests stops everybody's answer.",
        ),
        "one-token-for-those-who-run": (
            wrong("one-token-for-those-who-run"),
            "Those who run get a single token. But one of them may be in the middle of its prompt, and lags by many.",
        ),
        "seats-ignored": (_ignore_seats, "More requests run than there are seats (max_num_seqs)."),
        "seats-of-those-who-run": (
            wrong("seats-ignored"),
            "Those who run have seats already; you count only those who are admitted in this step.",
        ),
        "idle-seats-given-away": (
            wrong("idle-seats-given-away"),
            "Somebody runs and computes nothing in this step. It still has its seat, and here another one gets it.",
        ),
        "parts-of-nothing": (
            wrong("parts-of-nothing"),
            "A request is listed with 0 tokens: it lags by nothing, or the budget is used up. Nothing to compute: not listed.",
        ),
        "jumps-the-queue": (
            wrong("jumps-the-queue"),
            "A request that lags more than the budget is skipped, and others pass it. It should begin with a piece.",
        ),
        "whole-prompts-only": (
            wrong("whole-prompts-only"),
            "A prompt larger than what is left of the budget is not begun. It should take what is left.",
        ),
    }  # fmt: skip
    name_the_mistake(
        share_budget, cases, _one_step, mistakes, clean=as_plan, show=show_plan, look=_unchanged,
        tried=lambda r, w, b, s: f"running {r}, waiting {w} (computed/tokens), budget {b}, {s} seat{'s' * (s > 1)}",
    )  # fmt: skip
    return f"{len(cases)} steps: the example, and others with up to seven requests at random."
