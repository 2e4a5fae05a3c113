"""Answers that are classes, judged by short scripts: a script is what the learner reads in the box, and what is run.

run_script("a = Allocator(4); b = a.take(); a.give_back([b, b])", Allocator=answer)
# [("b = a.take()", 1), ("a.give_back([b, b])", "ValueError")]
"""

import ast
from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any

from exercises.judging.comparing import show as as_text

REFUSALS = (ValueError, MemoryError)  # what an answer may be asked to raise
# Of each statement: its text; its value, or the name of the refusal that it raised.
Outcome = list[tuple[str, Any]]


class When:
    """A mistake that is seen by what came out: `test(got, right result, *arguments)`. Asked when no other explains it."""

    def __init__(self, test: Callable[..., bool]) -> None:
        self.test = test


@cache
def _statements(script: str) -> list[tuple[str, CodeType, str, str]]:
    """The text of each statement, its value as code, the name that it is assigned to, and the name of what it calls."""
    found = []
    for statement in ast.parse(script).body:
        assert isinstance(statement, ast.Assign | ast.Expr)
        target = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
        code = compile(ast.Expression(statement.value), "<script>", "eval")
        called = ast.unparse(statement.value.func) if isinstance(statement.value, ast.Call) else ""
        found.append((ast.unparse(statement), code, target, called))
    return found


def run_script(script: str, **names: Any) -> Outcome:
    """Run a script of assignments and expressions with these names. What a call of a name makes is no outcome."""
    known, out = dict(names), []
    for text, code, target, called in _statements(script):
        try:
            value, refused = eval(code, known), False
        except REFUSALS as error:
            value, refused = type(error).__name__, True
        if target:
            known[target] = value
        if refused or called not in names:
            out.append((text, list(value) if isinstance(value, list) else value))
    return out


def first_difference(got: Outcome, want: Outcome) -> tuple[str, Any, Any]:
    """The first statement that gave something else, what it gave, and what it should give."""
    return next((line, a, b) for (line, a), (_, b) in zip(got, want) if a != b)


def first_is(line: str, test: Callable[[Any, Any], bool] = lambda got, want: True) -> When:
    """A mistake by the first statement that gives something else: how it begins, and a test of what it gives and should give."""

    def seen(got: Outcome, want: Outcome, *_: Any) -> bool:
        text, a, b = first_difference(got, want)
        return text.startswith(line) and test(a, b)

    return When(seen)


def present(got: Outcome, want: Outcome) -> tuple[str, str]:
    """Both by the first difference."""
    line, a, b = first_difference(got, want)
    return f"{line} gives {as_text(a)}", f"{line} gives {as_text(b)}"


def show_script(script: str) -> str:
    return script if len(script) < 400 else f"{script[:300]} ... and {script.count(';')} statements in all"
