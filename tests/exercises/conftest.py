"""Tiny exercises for the tests of the framework, and how tests read what a check shows."""

from collections.abc import Callable

import pytest

from exercises.grading import Exercise
from exercises.judging import boxes, registry
from exercises.judging.judge import judge
from tests.exercises.adding import minus, right

ADD = Exercise("p1t1_add", 30.0, add={})


@ADD.grader
def grade_add(add: Callable[[int, int], int]) -> None:
    known, says = {"subtracts": [minus]}, {"subtracts": "You take `b` away."}
    judge(add, [(1, 2), (5, 5), (-3, 3)], right, known, says, show="add({}, {})".format)


@pytest.fixture
def adding(monkeypatch: pytest.MonkeyPatch) -> Exercise:
    """The exercise p1t1_add, one function that adds two numbers, known to check() and hint()."""
    known = registry.find
    monkeypatch.setattr(registry, "find", lambda name: ADD if name == ADD.name else known(name))
    monkeypatch.setattr(boxes, "heading_of", lambda name: "1.0 Add <two> numbers")
    return ADD
