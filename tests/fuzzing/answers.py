"""An attacker of the graders: right answers with one mistake in them. Whatever a grader still accepts is a finding.

The right answers are the course's own solutions. Their code is changed in one place: another comparison, a number larger or
smaller by one, arguments swapped, a statement left out, a loop or a function that ends early. A finding is mended in the grader, and the bank gets a wrong answer more. Or the answer is as right as before:
then it stands in right_all_the_same.txt with the reason, and is no finding any more.
"""

import ast
import copy
import json
import linecache
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from exercises.judging.registry import find
from exercises.judging.sandbox import judge_safely
from exercises.judging.sources import all_names
from exercises.judging.verdict import NotYet, Verdict
from tests.exercises.changed import solution_source

RIGHT_ALL_THE_SAME = Path(__file__).with_name("right_all_the_same.txt")
ANSWER_FILE = "<answer>"  # what the code of an answer says it stands in


class RightAnswer(NamedTuple):
    """Code that defines ANSWER, the tuple of what `check` gets after the name."""

    program: ast.Module  # each statement on one line
    lines: set[int]  # those that are run when it is graded
    seconds: float


@cache
def right_answer(name: str) -> RightAnswer:
    """The solution's source."""
    asked = ", ".join(find(name).asks)
    program = ast.parse(ast.unparse(ast.parse(f"{solution_source(name, {})}\nANSWER = ({asked},)")))
    began = time.perf_counter()
    with tempfile.NamedTemporaryFile() as note:
        verdict = graded(name, program, 200, Path(note.name))
        assert verdict.state == "correct", (name, verdict)
        return RightAnswer(program, set(json.load(note)), time.perf_counter() - began)


def graded(name: str, program: ast.Module, seconds: float, note: Path | None = None) -> Verdict:
    """The program is run within the sandbox, too. `note`: where to write which lines are run."""
    exercise = find(name)
    source = ast.unparse(program)
    lines: set[int] = set()

    def trace(frame: Any, *_: Any) -> Any:
        if frame.f_code.co_filename != ANSWER_FILE:
            return None
        lines.add(frame.f_lineno)
        return trace

    def grade(source: str) -> None:
        linecache.cache[ANSWER_FILE] = len(source), None, source.splitlines(keepends=True), ANSWER_FILE
        if note:
            sys.settrace(trace)
        defined: dict[str, Any] = {"__name__": "answer"}
        try:
            exec(compile(source, ANSWER_FILE, "exec"), defined)
        except Exception as error:
            raise NotYet("raises", str(error)) from None
        exercise.grade(*defined["ANSWER"])
        if note:
            note.write_text(json.dumps(sorted(lines)))

    return judge_safely(replace(exercise, asks=("source",), grade=grade), (source,), seconds)


# ------------------------------------------------------------------ mistakes

OPERATORS = (  # each with those that a mistake puts in its place
    "Lt LtE GtE, LtE Lt Gt, Gt GtE LtE, GtE Gt Lt, Eq NotEq, NotEq Eq, In NotIn, NotIn In, Is IsNot, IsNot Is, And Or, "
    "Or And, Add Sub, Sub Add, Mult Add FloorDiv, Div Mult FloorDiv, FloorDiv Mult Mod, Mod FloorDiv, BitAnd BitOr, BitOr BitAnd"
)
OTHERWISE = {one: others for one, *others in map(str.split, OPERATORS.split(", "))}
SWAPPED_NAMES = (
    "min max, any all, ceil floor, tril triu, pop popleft, argmin argmax, minimum maximum, zeros ones"
)
OTHER_NAME = {
    one: other for pair in map(str.split, SWAPPED_NAMES.split(", ")) for one, other in (pair, pair[::-1])
}
ANY_ORDER = {"min", "max", "minimum", "maximum", "transpose", "dot"}  # of their arguments

Change = Callable[[], None]  # of a node, in its place


def changes(node: Any, lines: set[int]) -> Iterator[Change]:
    """The mistakes that can be made in this node, apart from those in the nodes below it. `lines`: those that are run."""
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                for other in OTHERWISE[type(op).__name__]:
                    yield partial(ops.__setitem__, i, getattr(ast, other)())
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op):
            for other in OTHERWISE.get(type(op).__name__, ()):
                yield partial(setattr, node, "op", getattr(ast, other)())
        case ast.Constant(value=bool(value)):
            yield partial(setattr, node, "value", not value)
        case ast.Constant(value=int(value)):
            for number in (value + 1, value - 1):
                yield partial(setattr, node, "value", number)
        case ast.Slice():
            for side in ("lower", "upper"):
                if getattr(node, side):
                    yield partial(setattr, node, side, None)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield partial(setattr, node, "test", ast.UnaryOp(ast.Not(), test))
        case ast.Call(func=func, args=args) if ast.unparse(func).rpartition(".")[2] not in ANY_ORDER:
            for i in range(len(args) - 1):
                if ast.unparse(args[i]) != ast.unparse(args[i + 1]):
                    yield partial(args.__setitem__, slice(i, i + 2), args[i : i + 2][::-1])
        case ast.Name(id=name) if name in OTHER_NAME:
            yield partial(setattr, node, "id", OTHER_NAME[name])
        case ast.Attribute(attr=name) if name in OTHER_NAME:
            yield partial(setattr, node, "attr", OTHER_NAME[name])
    if not isinstance(node, ast.Module | ast.ClassDef):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(block, list) and block and block[0].lineno in lines:
                yield from changes_of_block(node, block)


def changes_of_block(owner: ast.AST, block: list[ast.stmt]) -> Iterator[Change]:
    for i, statement in enumerate(block):
        if isinstance(statement, ast.Pass) or _is_docstring(statement):
            continue
        yield partial(block.__setitem__, i, ast.Pass())
        if isinstance(statement, ast.Break | ast.Continue):
            other = ast.Continue() if isinstance(statement, ast.Break) else ast.Break()
            yield partial(block.__setitem__, i, other)
        if (
            0 < i < len(block) - 1
            and isinstance(owner, ast.FunctionDef)
            and isinstance(block[-1], ast.Return)
        ):
            yield partial(block.insert, i, block[-1])
    if isinstance(owner, ast.For | ast.While) and block is owner.body:
        yield partial(block.append, ast.Break())


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


class Mutant(NamedTuple):
    name: str
    program: ast.Module
    seconds: float  # that it may take
    where: str  # the function or class
    removed: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def key(self) -> str:
        """What the mistake is, as right_all_the_same.txt says it."""
        changed = [f"- {s}" for s in self.removed] + [f"+ {s}" for s in self.added]
        return "\n".join([f"{self.name} {self.where}", *changed])


def places(right: RightAnswer) -> list[tuple[int, int]]:
    """Where a mistake can be made: (number of a node, number of one of its changes)."""
    *examples, _ = (s for s in right.program.body if isinstance(s, ast.Assign))
    messages = [node for node in ast.walk(right.program) if isinstance(node, ast.Raise)]
    left_alone = {inner for node in (*examples, *messages) for inner in ast.walk(node)}
    return [
        (number, i)
        for number, node in enumerate(ast.walk(right.program))
        if getattr(node, "lineno", 0) in right.lines and node not in left_alone
        for i, _ in enumerate(changes(node, right.lines))
    ]


def mutant(name: str, right: RightAnswer, number: int, which: int) -> Mutant:
    program = copy.deepcopy(right.program)
    node = list(ast.walk(program))[number]
    list(changes(node, right.lines))[which]()
    before, after = ast.unparse(right.program).splitlines(), ast.unparse(program).splitlines()
    begin = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    while before[-1:] == after[-1:] and min(len(before), len(after)) > begin:
        before.pop(), after.pop()
    if begin == len(before):  # nothing is removed: the line above says where this is
        begin -= 1
    above = [line.split()[1] for line in before[: begin + 1] if line.lstrip().startswith(("def ", "class "))]
    where = above[-1].partition("(")[0].rstrip(":") if above else "answer"
    removed, added = ([line.strip() for line in lines[begin:]] for lines in (before, after))
    return Mutant(name, program, 1 + 4 * right.seconds, where, tuple(removed), tuple(added))


# ------------------------------------------------------------------ the attack


def right_all_the_same() -> set[str]:
    """The keys of mutants that are no finding."""
    blocks = RIGHT_ALL_THE_SAME.read_text(encoding="utf-8").split("\n\n")
    return {block.strip().rpartition("\n= ")[0] for block in blocks if not block.startswith("#")}


def try_answer(rng: random.Random) -> list[str]:
    name = rng.choice(all_names())
    right = right_answer(name)
    if not (where := places(right)):
        return []  # an answer without code, such as a query: nothing to change
    mutated = mutant(name, right, *rng.choice(where))
    verdict = graded(name, mutated.program, mutated.seconds)
    if verdict.diagnosis == "grader-failed":
        return [f"{verdict.says}\n{mutated.key}"]
    accepted = verdict.state == "correct" and mutated.key not in right_all_the_same()
    return [f"accepted\n{mutated.key}"] * accepted
