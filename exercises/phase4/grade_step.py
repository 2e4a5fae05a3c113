"""Grader of exercise 4.1: one step, one budget."""

import random
from collections.abc import Callable

from exercises.grading import Diagnoses, Exercise
from exercises.judging.judge import judge, variants
from exercises.phase4.visitors import BY_HAND, NAMES, Visitor, as_plan, plans_in_words

MISTAKES = Diagnoses.of("p4e1_one_step")
CHANGES = Diagnoses.of("p4e1_one_step changes")


def _one_step(running, waiting, budget, seats, mistake=""):
    if mistake == "seats-ignored":
        seats = 10**6
    whole, plan, left = budget, [], seats - (0 if mistake == "running-seats-not-counted" else len(running))

    def lag(request):
        return request.num_tokens - (0 if mistake == "lag-ignores-computed" else request.num_computed_tokens)

    def run():
        nonlocal budget
        for request in running:
            n = min(lag(request), whole if mistake == "budget-per-request" else budget)
            if mistake == "one-token-for-running":
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
    v = Visitor
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
        variants(_one_step, MISTAKES),
        MISTAKES,
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
