"""Grader of exercise 4.3: a long prompt in pieces."""

import random
from collections.abc import Callable

from exercises.judging.solutions import Solution
from exercises.phase4.small_requests import NAMES, SmallRequest, as_plan

THRESHOLD, TOO_MUCH = "if threshold and not alone:", "if n > budget and not chunked:"
EXERCISE = Solution(
    "p4e3_chunks",
    tokens_now={
        "begins-anew": {" - request.num_computed_tokens": ""},
        "threshold-for-one-alone": {THRESHOLD: "if threshold:"},
        "threshold-of-nothing": {THRESHOLD: "if not alone:"},
        "cuts-anyway": {TOO_MUCH: "if False:"},
        "over-the-budget": {"return min(n, budget)": "return n"},
        "threshold-only-with-chunks": {THRESHOLD: "if threshold and chunked and not alone:"},
        "waits-before-the-threshold": {
            f"    {THRESHOLD}": f"    {TOO_MUCH}\n        return 0\n    {THRESHOLD}"
        },
    },
    admit={
        "jumps-the-queue": {"break": "continue"},
        "budget-per-request": {"        budget -= n\n": ""},
        "parts-of-nothing": {"break": "pass"},
        "one-at-a-time": {"in waiting:": "in waiting[:1]:"},
    },
)


@EXERCISE.grader
def grade_chunks(tokens_now: Callable, admit: Callable) -> None:
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

    EXERCISE.judge("tokens_now", tokens_now, cases)
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
    EXERCISE.judge("admit", admit, queues, clean=as_plan)
