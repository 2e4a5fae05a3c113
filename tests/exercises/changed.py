"""The banks of answers, and the solutions with slips in them."""

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from exercises.judging.registry import find
from exercises.judging.solutions import solved


def bank_of(name: str) -> ModuleType:
    """The bank of an exercise: RIGHT and WRONG."""
    return importlib.import_module(f"tests.exercises.answers.{name}")


def solution(name: str, slip: Mapping[str, Any]) -> tuple[Any, ...]:
    """The answers of an exercise's solution, with slips in them, or with another answer in place of one."""
    return tuple(solved(name, find(name).asks, slip).values())


def answers_of(name: str, answer: Any) -> tuple[Any, ...]:
    """What `check` gets for an entry of a bank."""
    if isinstance(answer, dict):
        return solution(name, answer)
    return answer if isinstance(answer, tuple) else (answer,)
