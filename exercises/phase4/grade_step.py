"""Grader of exercise 4.1: one step, one budget."""

import random
from collections.abc import Callable

from exercises.grading import Diagnoses, Exercise
from exercises.judging.judge import judge
from exercises.judging.slips import slips
from exercises.phase4.small_requests import BY_HAND, NAMES, SmallRequest, as_plan, plans_in_words

SAYS = Diagnoses.of("p4e1_one_step")
CHANGES = Diagnoses.of("p4e1_one_step changes")


def _one_step(running, waiting, budget, seats):
    plan = []
    for request in running:
        n = min(request.num_tokens - request.num_computed_tokens, budget)
        if n > 0:
            plan.append((request, n))
            budget -= n
    left = seats - len(running)
    for request in waiting:
        lag = request.num_tokens - request.num_computed_tokens
        if left <= 0 or budget <= 0:
            break
        plan.append((request, min(lag, budget)))
        budget -= plan[-1][1]
        left -= 1
    return plan


STOP = "if left <= 0 or budget <= 0:\n            break"
MISTAKES = {
    "budget-per-request": {"budget -= n": "pass", "budget -= plan[-1][1]": "pass"},
    "lag-ignores-computed": {" - request.num_computed_tokens": ""},
    "waiting-first": {
        "in running:": "in waiting[: max(seats - len(running), 0)]:",
        "in waiting:": "in running:",
        "left <= 0 or budget <= 0": "budget <= 0 or lag <= 0",
    },
    "one-token-for-running": {"num_computed_tokens, budget)": "num_computed_tokens, budget, 1)"},
    "seats-ignored": {"left <= 0 or ": ""},
    "running-seats-not-counted": {"seats - len(running)": "seats"},
    "idle-seats-given-away": {"seats - len(running)": "seats - len(plan)"},
    "parts-of-nothing": {"if n > 0:": "if True:", " or budget <= 0": ""},
    "jumps-the-queue": {STOP: "if left <= 0 or budget < lag:\n            continue"},
    "whole-prompts-only": {"budget <= 0": "budget < lag"},
}


def _unchanged(before: tuple, after: tuple) -> None:
    """The requests are to stay as they are, and so are the lists."""
    (running, waiting, *_), (running_now, waiting_now, *_) = before, after
    tried = f"running {running}, waiting {waiting} (computed/tokens)"
    if [r.name for r in running_now] != [r.name for r in running] or len(waiting_now) != len(waiting):
        got = f"running {running_now}, waiting {waiting_now}"
        raise CHANGES.no("changes-the-lists", tried, got, "the same lists as before")
    for a, b in zip([*running, *waiting], [*running_now, *waiting_now]):
        if (a.num_tokens, a.num_computed_tokens) != (b.num_tokens, b.num_computed_tokens):
            raise CHANGES.no("changes-the-requests", tried, repr(b), repr(a), name=a.name)


def grade_one_step(share_budget: Callable) -> str:
    rng = random.Random(1)
    v = SmallRequest
    cases: list[tuple] = [
        ([v("Ann", 10, 9), v("Ben", 5, 4)], [v("Lea", 40), v("Tom", 3)], 16, 4),
        ([v("Ann", 10, 9), v("Lea", 40, 14)], [v("Tom", 3)], 16, 4),
        ([v("Ann", 10, 9), v("Ben", 5, 4)], [v("Cal", 4), v("Dan", 3)], 16, 3),
        ([v("Ann", 10, 10), v("Ben", 5, 4)], [], 16, 3),
        ([], [], 16, 3),
        ([v("Ann", 10, 9)], [v("Lea", 40, 35), v("Tom", 3)], 16, 4),  # Lea's beginning is computed already
    ]
    for _ in range(150):
        names = iter(NAMES)
        lengths = rng.choices(range(2, 40), k=rng.randint(0, 3))
        running = [v(next(names), n, n - rng.choice((0, 1, 1, 1, min(n, 12)))) for n in lengths]
        waiting = [v(next(names), rng.randint(1, 30)) for _ in range(rng.randint(0, 4))]
        cases.append((running, waiting, rng.randint(1, 40), len(running) + rng.randint(0, 3)))

    def show(running, waiting, budget, seats):
        queue = f"running {running}, waiting {waiting} (computed/tokens)"
        return f"{queue}, budget {budget}, {seats} seat{'s' * (seats > 1)}"

    judge(
        share_budget,
        cases,
        _one_step,
        slips(_one_step, MISTAKES),
        SAYS,
        show=show,
        clean=as_plan,
        present=plans_in_words,
        keeps_input=_unchanged,
        otherwise=BY_HAND,
    )
    return f"{len(cases)} steps: the example, and others with up to seven requests at random."


EXERCISES = [
    Exercise("p4e1_one_step", ("share_budget",), grade_one_step),
]
