"""Grader of exercise 4.11: a mask for a small language."""

import random
from collections.abc import Callable

from exercises.judging.solutions import Solution

ENDS, ALIVE = "state in accepting if", "return reached in alive"
EXERCISE = Solution(
    "p4e11_mask",
    mask={
        "first-character-only": {"in token:": "in token[:1]:"},
        "whole-text-only": {ALIVE: "return reached in accepting"},
        "dead-ends": {ALIVE: "return True"},
        "one-move-from-the-end": {"while more": "if more"},
        "starts-anew": {"reached = state": "reached = 0"},
        "end-always": {ENDS: "True if"},
        "end-never": {ENDS: "False if"},
        "end-where-alive": {ENDS: "state in alive if"},
        "empty-tokens": {'token != "" and ': ""},
    },
)


@EXERCISE.grader
def grade_mask(mask: Callable) -> None:
    moves = {0: {"a": 1, "x": 9}, 1: {"b": 2}, 2: {"c": 3}, 3: {}, 9: {"x": 9}}
    tokens = ["", "a", "ab", "abd", "b", "x", "c"]
    cases = [(moves, {2, 3}, state, tokens, 0) for state in moves]
    rng = random.Random(11)
    for _ in range(150):
        states = range(rng.randint(2, 6))
        moves = {s: {c: rng.choice(states) for c in "abc" if rng.random() < 0.5} for s in states}
        tokens = ["".join(rng.choices("abc", k=rng.choice((0, 1, 1, 2, 3)))) for _ in range(8)]
        end = rng.randrange(8)
        tokens[end] = ""
        cases.append((moves, {rng.choice(states)}, rng.choice(states), tokens, end))

    EXERCISE.judge("mask", mask, cases)
