"""Tiny exercises for the tests of the framework, and how tests read what a check shows."""

from collections.abc import Callable

import pytest

from exercises.grading import Exercise, NotYet, expect_equal, guard
from exercises.judging import boxes, registry

ADD = Exercise("p1t1_add", 30.0, add={})


@ADD.grader
def grade_add(add: Callable[[int, int], int]) -> None:
    for a, b in ((1, 2), (5, 5), (-3, 3)):
        out = guard(add, a, b)
        if out == a - b != a + b:
            raise NotYet("subtracts", "You take `b` away.", f"add({a}, {b})", out, a + b)
        expect_equal(out, a + b, f"add({a}, {b})")


@pytest.fixture
def adding(monkeypatch: pytest.MonkeyPatch) -> Exercise:
    """The exercise p1t1_add, one function that adds two numbers, known to check() and hint()."""
    known = registry.find
    monkeypatch.setattr(registry, "find", lambda name: ADD if name == ADD.name else known(name))
    monkeypatch.setattr(boxes, "heading_of", lambda name: "1.0 Add <two> numbers")
    return ADD
