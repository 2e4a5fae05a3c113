"""Is the answer the learner's own? Not if it calls the course's part, and not if it changes what judges it.

    from phase1_tokens_embeddings.tokens.bpe import merge_pair
    merge = merge_pair                                            # borrowed

What an exercise hands out may be used: all that its notebook imports before the check. This finds what is borrowed in
passing. Somebody who hides it on purpose can: `lab grade` shows more, and a talk with the learner shows the rest.
"""

import ast
import dis
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from exercises.judging.sources import source_of

OF_THE_COURSE = re.compile(r"(phase\d_\w+|exercises|labkit|notebooks)(\.\w+)*")
GRADERS_USE = ("builtins", "json", "math", "os", "time", "random", "numpy", "torch")


# ------------------------------------------------------------------ borrowed


def borrowed(name: str, answers: tuple[Any, ...]) -> str | None:
    """What the answers to an exercise use of the course that it does not hand out, in words; None if nothing."""
    seen: set[int] = set()
    uses = (use for answer in answers for use in _uses(answer, seen))
    handed_out = _handed_out(name)
    return next((words for words, thing in uses if not any(thing is h for h in handed_out)), None)


@cache
def _handed_out(name: str) -> list[Any]:
    """What an exercise's notebook imports of the course before its check: the things, and the names of their modules."""
    try:
        cells = source_of(name).read_text(encoding="utf-8").partition('# %% tags=["check"]')[0]
    except ValueError:  # an exercise without a source
        return []
    found: list[Any] = []
    for node in ast.walk(ast.parse(cells)):
        if isinstance(node, ast.ImportFrom) and _of_the_course(node.module):
            module = importlib.import_module(str(node.module))
            found += [module, *(getattr(module, alias.name) for alias in node.names)]
    return found


def _of_the_course(module: Any) -> bool:
    return isinstance(module, str) and OF_THE_COURSE.fullmatch(module) is not None


def _uses(thing: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """(in words, the thing) for all of the course's that a value leads to. Only through what the learner wrote."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, ModuleType):
        if _of_the_course(thing.__name__):
            yield f"the module `{thing.__name__}`", thing
        return
    if isinstance(thing, partial):
        yield from _uses(thing.func, seen)
        return
    named = thing if isinstance(thing, (FunctionType, type)) else type(thing)
    if _of_the_course(named.__module__):
        yield f"`{named.__qualname__}` of {named.__module__}", named
    elif isinstance(thing, FunctionType):
        for value in _reached_by(thing):
            yield from _uses(value, seen)
        yield from imports_of(thing.__code__)
    elif isinstance(thing, type):
        for value in (*thing.__bases__, *vars(thing).values()):
            yield from _uses(inspect.unwrap(getattr(value, "__func__", value)), seen)
    elif isinstance(thing, property):
        yield from _uses(thing.fget, seen)


def _reached_by(function: FunctionType) -> Iterator[Any]:
    """The values of the names that a function uses: globals, names of outer functions, defaults of arguments."""
    for code in _codes_in(function.__code__):
        for step in dis.get_instructions(code):
            if step.opname == "LOAD_GLOBAL" and step.argval in function.__globals__:
                yield function.__globals__[step.argval]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def imports_of(code: CodeType) -> Iterator[tuple[str, Any]]:
    """(in words, the thing) of what code imports of the course, and texts that are the name of a module of it."""
    for part in _codes_in(code):
        module = None
        for step in dis.get_instructions(part):
            if step.opname == "IMPORT_NAME":
                module = step.argval if _of_the_course(step.argval) else None
                if module:
                    yield f"the module `{module}`", sys.modules.get(module)
            elif step.opname == "IMPORT_FROM" and module:
                yield f"`{step.argval}` of {module}", getattr(sys.modules.get(module), step.argval, None)
        for text in part.co_consts:
            if _of_the_course(text) and "." in text:
                yield f"the module `{text}`", text


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


# ------------------------------------------------------------------ changed


class AsItWas:
    """The functions and classes of the course, of Python and of what graders compute with, as they are now."""

    def __init__(self) -> None:
        self.spaces: dict[str, tuple[Any, dict[str, Any]]] = {}
        self.codes: dict[str, tuple[FunctionType, CodeType]] = {}
        for module in [m for n, m in sys.modules.items() if n in GRADERS_USE or _of_the_course(n)]:
            self._keep(module.__name__, module)
            for name, value in vars(module).items():
                if isinstance(value, type) and _of_the_course(value.__module__):
                    self._keep(f"{value.__module__}.{name}", value)

    def _keep(self, name: str, owner: Any) -> None:
        held = {n: v for n, v in vars(owner).items() if callable(v)}
        self.spaces[name] = owner, held
        if _of_the_course(name):
            self.codes |= {f"{name}.{n}": (v, v.__code__) for n, v in held.items() if type(v) is FunctionType}

    def put_back(self) -> str | None:
        """Undo all changes. Returns the name of one that was made, None if there was none."""
        found = None
        for name, (owner, held) in self.spaces.items():
            for word, value in held.items():
                if owner.__dict__.get(word) is not value:
                    found = found or f"{name}.{word}"
                    setattr(owner, word, value)
        for name, (function, code) in self.codes.items():
            if function.__code__ is not code:
                found = found or name
                function.__code__ = code
        return found
