"""Grader of exercise 4.1: one step, one budget."""

import random
from collections.abc import Callable

from exercises.judging.solutions import Solution
from exercises.phase4.small_requests import NAMES, SmallRequest, as_plan

LAG = "request.num_tokens - request.num_computed_tokens"
STOPS = "if room == 0 or budget == 0:\n            break"
EXERCISE = Solution(
    "p4e1_one_step",
    share_budget={
        "budget-per-request": {"budget -= n": "pass"},
        "lag-ignores-computed": {LAG: "request.num_tokens"},
        "waiting-first": {
            "in running:": "in waiting[: max_num_seqs - len(running)]:",
            "in waiting:": "in running:",
            "if room == 0 or": "if",
        },
        "one-token-for-running": {"budget)\n        if n": "budget, 1)\n        if n"},
        "limit-ignored": {"if room == 0 or": "if"},
        "running-not-counted": {"max_num_seqs - len(running)": "max_num_seqs"},
        "parts-of-nothing": {"if n > 0:": "if True:", " or budget == 0": ""},
        "jumps-the-queue": {STOPS: f"if room == 0 or {LAG} > budget:\n            continue"},
        "whole-prompts-only": {STOPS: f"if room == 0 or {LAG} > budget:\n            break"},
        "idle-not-counted": {"room == 0": "len(plan) == max_num_seqs"},
    },
)


@EXERCISE.grader
def grade_one_step(share_budget: Callable) -> None:
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

    EXERCISE.judge("share_budget", share_budget, cases, clean=as_plan)
