"""The banks of answers, and the solutions with slips in them."""

import ast
import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from exercises.judging.registry import find
from exercises.judging.slips import changed, defined_by, with_slip
from exercises.judging.sources import cut, source_of

__all__ = ["bank_of", "changed", "solution", "solution_source"]


def bank_of(name: str) -> ModuleType:
    """The bank of an exercise: RIGHT and WRONG."""
    return importlib.import_module(f"tests.exercises.answers.{name}")


def solution_source(name: str, slip: Mapping[str, str]) -> str:
    """The solution's source up to the check, with slips in it: what it imports, defines and answers. It runs nothing."""
    source = source_of(name).read_text(encoding="utf-8").partition('# %% tags=["check"]')[0]
    lines = with_slip(cut(source).solution, slip, name).splitlines()
    for node in ast.parse("\n".join(lines)).body:
        answers = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in find(name).asks
        if not answers and not isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines) + "\n"


def solution(name: str, slip: Mapping[str, Any]) -> tuple[Any, ...]:
    """The answers of an exercise's solution, with slips in them.

    Args:
        slip: {what stands in the solution: what the learner wrote there}, or {name of an answer: another answer}.
    """
    texts = {old: new for old, new in slip.items() if isinstance(new, str)}
    names: dict[str, Any] = {"__name__": f"answers_{name}"}
    defined_by(solution_source(name, texts), name, names, into=names)
    return tuple(slip.get(asked, names[asked]) for asked in find(name).asks)
