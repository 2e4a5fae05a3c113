"""Is an answer the solution, or somebody else's answer, word for word? Names, comments and layout do not count.

Short answers are alike by nature: `return a @ b.T` can hardly be written otherwise. So only an answer counts in which the
learner wrote enough beyond the stub, and what is found is a reason to ask, not a proof.
"""

import ast
import hashlib
from collections.abc import Iterable
from functools import cache

from exercises.judging.plain_runs import parsed, without_magic
from exercises.judging.registry import find
from exercises.judging.sources import cut, source_of

LONG_ENOUGH = 60  # nodes of the syntax tree that the learner has written


def shapes_of(name: str, cells: Iterable[str]) -> dict[str, str]:
    """A hash of each function and class that an exercise asks for, without names; only of those that are long enough to tell."""
    stub = _stub_sizes(name)
    return {
        part: hashlib.sha256(ast.dump(tree).encode()).hexdigest()
        for part, tree in _asked_for(name, cells).items()
        if _size(tree) - stub.get(part, 0) >= LONG_ENOUGH
    }


def _asked_for(name: str, cells: Iterable[str]) -> dict[str, ast.AST]:
    found: dict[str, ast.AST] = {}
    for cell in cells:
        tree = parsed(without_magic(cell)) or ast.Module([], [])
        parts = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        found |= {node.name: _nameless(node) for node in parts if node.name in find(name).asks}
    return found


@cache
def solution_shapes(name: str) -> dict[str, str]:
    return shapes_of(name, [_source(name, solved=True)])


@cache
def _stub_sizes(name: str) -> dict[str, int]:
    return {part: _size(tree) for part, tree in _asked_for(name, [_source(name, solved=False)]).items()}


def _source(name: str, solved: bool) -> str:
    both = cut(source_of(name).read_text(encoding="utf-8"))
    return both.solution if solved else both.student


def _size(tree: ast.AST) -> int:
    return sum(1 for _ in ast.walk(tree))


def _nameless(tree: ast.AST) -> ast.AST:
    """The same code without docstrings and annotations, its own names numbered in the order in which they come."""
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    numbers: dict[str, str] = {}

    def numbered(name: str) -> str:
        return numbers.setdefault(name, f"name{len(numbers)}") if name in own else name

    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = numbered(node.id)
        elif isinstance(node, ast.arg):
            node.arg, node.annotation = numbered(node.arg), None
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
            if isinstance(node, ast.FunctionDef):
                node.returns = None
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            node.annotation = ast.Constant(None)
    return tree
