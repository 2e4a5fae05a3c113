"""Grader of exercise 4.3: a long prompt in pieces."""

import random
from collections.abc import Callable

from exercises.grading import Diagnoses, Exercise
from exercises.judging.judge import judge, variants
from exercises.phase4.visitors import BY_HAND, NAMES, Visitor, as_plan, plans_in_words

TOKENS_NOW = Diagnoses.of("p4e3_chunks tokens_now")
ADMIT = Diagnoses.of("p4e3_chunks admit")


def _tokens_now(request, budget, threshold, alone, chunked, mistake=""):
    n = request.num_tokens - (0 if mistake == "begins-anew" else request.num_computed_tokens)
    if mistake == "waits-before-the-threshold" and n > budget and not chunked:
        return 0
    limited = not alone or mistake == "threshold-for-one-alone"
    if (threshold or mistake == "threshold-of-nothing") and limited:
        n = min(n, threshold)
    if mistake == "threshold-only-with-chunks" and not chunked:
        n = request.num_tokens - request.num_computed_tokens
    if n > budget and not chunked and mistake != "cuts-anyway":
        return 0
    return n if mistake == "over-the-budget" else min(n, budget)


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


def grade_chunks(tokens_now: Callable, admit: Callable) -> str:
    rng = random.Random(3)
    lea, tom = Visitor("Lea", 400), Visitor("Tom", 3)
    cases = [
        (lea, 64, 32, False, True),
        (lea, 64, 0, False, True),
        (lea, 64, 32, True, True),
        (Visitor("Lea", 400, 390), 64, 32, False, True),
        (lea, 64, 0, False, False),
        (Visitor("Lea", 60), 64, 0, False, False),
        (Visitor("Lea", 100), 64, 32, False, False),
        (Visitor("Lea", 64), 64, 0, False, False),
        (lea, 64, 1, False, True),
    ]
    for _ in range(150):
        tokens = rng.randint(1, 100)
        request = Visitor("Lea", tokens, rng.choice((0, 0, rng.randrange(tokens))))
        budget, threshold = rng.randint(1, 80), rng.choice((0, 0, 8, 30))
        cases.append((request, budget, threshold, rng.random() < 0.3, rng.random() < 0.6))

    def conditions(budget, threshold, alone, chunked):
        return f"budget {budget}, threshold {threshold}, alone {alone}, chunked {chunked}"

    judge(
        tokens_now,
        cases,
        _tokens_now,
        variants(_tokens_now, TOKENS_NOW),
        TOKENS_NOW,
        show=lambda request, *args: f"{request} (computed/tokens), {conditions(*args)}",
        otherwise=BY_HAND,
    )
    queues = [
        ([lea, tom], 64, 32, False, True),
        ([lea, tom], 64, 0, False, True),
        ([lea, tom], 64, 0, False, False),
        ([Visitor("Lea", 61), tom], 64, 0, False, False),
        ([Visitor("Lea", 400, 390), tom], 64, 0, False, True),
        ([lea, tom], 64, 1, False, True),
    ]
    for _ in range(100):
        waiting = [Visitor(name, rng.randint(1, 60)) for name in NAMES[: rng.randint(0, 5)]]
        alone = len(waiting) == 1 and rng.random() < 0.5
        queues.append((waiting, rng.randint(1, 90), rng.choice((0, 10, 25)), alone, rng.random() < 0.6))
    judge(
        admit,
        queues,
        _admit,
        variants(_admit, ADMIT),
        ADMIT,
        show=lambda waiting, *args: f"waiting {waiting}, {conditions(*args)}",
        clean=as_plan,
        present=plans_in_words,
        otherwise=BY_HAND,
    )
    return f"{len(cases)} requests one by one, and {len(queues)} queues."


EXERCISES = [
    Exercise("p4e3_chunks", ("tokens_now", "admit"), grade_chunks),
]
