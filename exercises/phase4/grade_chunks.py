"""Grader of exercise 4.3: a long prompt in pieces."""

import random
from collections.abc import Callable

from exercises.grading import Diagnoses, Exercise
from exercises.judging.judge import judge
from exercises.judging.slips import slips
from exercises.phase4.small_requests import BY_HAND, NAMES, SmallRequest, as_plan, plans_in_words

TOKENS_NOW = Diagnoses.of("p4e3_chunks tokens_now")
ADMIT = Diagnoses.of("p4e3_chunks admit")


def _tokens_now(request, budget, threshold, alone, chunked):
    n = request.num_tokens - request.num_computed_tokens
    if threshold and not alone:
        n = min(n, threshold)
    if n > budget and not chunked:
        return 0
    return min(n, budget)


THRESHOLD, TOO_MUCH = "if threshold and not alone:", "if n > budget and not chunked:"
TOKENS_NOW_WRONG = {
    "begins-anew": {" - request.num_computed_tokens": ""},
    "threshold-for-one-alone": {THRESHOLD: "if threshold:"},
    "threshold-of-nothing": {THRESHOLD: "if not alone:"},
    "cuts-anyway": {TOO_MUCH: "if False:"},
    "over-the-budget": {"min(n, budget)": "n"},
    "threshold-only-with-chunks": {THRESHOLD: "if threshold and not alone and chunked:"},
    "waits-before-the-threshold": {f"    {THRESHOLD}": f"    {TOO_MUCH}\n        return 0\n    {THRESHOLD}"},
}


def _admit(waiting, budget, threshold, alone, chunked):
    plan = []
    for request in waiting:
        n = _tokens_now(request, budget, threshold, alone, chunked)
        if n == 0:
            break
        plan.append((request, n))
        budget -= n
    return plan


ADMIT_WRONG = {
    "jumps-the-queue": {"break": "continue"},
    "budget-per-request": {"budget -= n": "pass"},
    "parts-of-nothing": {"break": "pass"},
    "one-at-a-time": {"budget -= n": "break"},
}


def grade_chunks(tokens_now: Callable, admit: Callable) -> str:
    rng = random.Random(3)
    lea, tom = SmallRequest("Lea", 400), SmallRequest("Tom", 3)
    cases = [
        (lea, 64, 32, False, True),
        (lea, 64, 0, False, True),
        (lea, 64, 32, True, True),
        (SmallRequest("Lea", 400, 390), 64, 32, False, True),
        (lea, 64, 0, False, False),
        (SmallRequest("Lea", 60), 64, 0, False, False),
        (SmallRequest("Lea", 100), 64, 32, False, False),
        (SmallRequest("Lea", 64), 64, 0, False, False),
        (lea, 64, 1, False, True),
    ]
    for _ in range(150):
        tokens = rng.randint(1, 100)
        request = SmallRequest("Lea", tokens, rng.choice((0, 0, rng.randrange(tokens))))
        budget, threshold = rng.randint(1, 80), rng.choice((0, 0, 8, 30))
        cases.append((request, budget, threshold, rng.random() < 0.3, rng.random() < 0.6))

    def conditions(budget, threshold, alone, chunked):
        return f"budget {budget}, threshold {threshold}, alone {alone}, chunked {chunked}"

    judge(
        tokens_now,
        cases,
        _tokens_now,
        slips(_tokens_now, TOKENS_NOW_WRONG),
        TOKENS_NOW,
        show=lambda request, *args: f"{request} (computed/tokens), {conditions(*args)}",
        otherwise=BY_HAND,
    )
    queues = [
        ([lea, tom], 64, 32, False, True),
        ([lea, tom], 64, 0, False, True),
        ([lea, tom], 64, 0, False, False),
        ([SmallRequest("Lea", 61), tom], 64, 0, False, False),
        ([SmallRequest("Lea", 400, 390), tom], 64, 0, False, True),
        ([lea, tom], 64, 1, False, True),
    ]
    for _ in range(100):
        waiting = [SmallRequest(name, rng.randint(1, 60)) for name in NAMES[: rng.randint(0, 5)]]
        alone = len(waiting) == 1 and rng.random() < 0.5
        queues.append((waiting, rng.randint(1, 90), rng.choice((0, 10, 25)), alone, rng.random() < 0.6))
    judge(
        admit,
        queues,
        _admit,
        slips(_admit, ADMIT_WRONG),
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
