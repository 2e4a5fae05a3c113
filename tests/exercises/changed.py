"""The banks of answers, and the solutions with slips in them."""

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from exercises.judging import solutions
from exercises.judging.registry import find


def bank_of(name: str) -> ModuleType:
    """The bank of an exercise: RIGHT and WRONG."""
    return importlib.import_module(f"tests.exercises.answers.{name}")


def solution_source(name: str, slip: Mapping[str, str]) -> str:
    """The solution's source with slips in it."""
    return solutions.solution_source(name, find(name).asks, slip)


def solution(name: str, slip: Mapping[str, Any]) -> tuple[Any, ...]:
    """The answers of an exercise's solution, with slips in them, or with another answer in place of one."""
    return tuple(solutions.solved(name, find(name).asks, slip).values())
