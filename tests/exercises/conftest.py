"""Tiny exercises for the tests of the framework, and how tests read what a check shows."""

from collections.abc import Callable

import pytest

from exercises.grading import Exercise
from exercises.judging import registry
from exercises.judging.judge import When


def stub(a, b):
    """What a and b make."""
    raise NotImplementedError("your turn")


def right(a, b):
    return a + b


def minus(a, b):
    return a - b


def times(a, b):
    return a * b


ADD = Exercise("p1t1_add", 30.0, add={"subtracts": When(lambda got, want, a, b: got == minus(a, b))})
ADD.heading, ADD.answers = "1.0 Add <two> numbers", {"add": right}
ADD.says = lambda asked: {"subtracts": "You take `b` away."}


@ADD.grader
def grade_add(add: Callable[[int, int], int]) -> None:
    ADD.judge("add", add, [(1, 2), (5, 5), (-3, 3)])


@pytest.fixture
def adding(monkeypatch: pytest.MonkeyPatch) -> Exercise:
    """The exercise p1t1_add, one function that adds two numbers, known to check() and hint()."""
    known = registry.find
    monkeypatch.setattr(registry, "find", lambda name: ADD if name == ADD.name else known(name))
    return ADD
