"""The banks of answers, and the solutions with slips in them."""

import importlib
from collections.abc import Mapping
from typing import Any

from exercises.judging.registry import find
from exercises.judging.sources import solved


def solution(name: str, slip: Mapping[str, Any]) -> tuple[Any, ...]:
    """The answers of an exercise's solution, with slips in them, or with another answer in place of one."""
    return tuple(solved(name, find(name).asks, slip).values())


def answers_of(name: str, answer: Any) -> tuple[Any, ...]:
    """What `check` gets for an entry of a bank."""
    if isinstance(answer, dict):
        return solution(name, answer)
    return answer if isinstance(answer, tuple) else (answer,)


def bank_of(name: str) -> tuple[list[Any], list[tuple[str, Any]]]:
    """The entries in the bank of an exercise: right ones, and (diagnosis, wrong one)."""
    bank = importlib.import_module(f"tests.exercises.answers.{name}")
    wrong = getattr(bank, "WRONG", {}).items()
    return _listed(bank.RIGHT), [(told, one) for told, some in wrong for one in _listed(some)]


def _listed(some: Any) -> list[Any]:
    return some if isinstance(some, list) else [some]
