"""Is the answer the learner's own? Not if it calls the course's part.

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

from exercises.judging.plain_runs import parsed, without_magic
from exercises.judging.sources import source_of

OF_THE_COURSE = re.compile(r"(phase\d_\w+|exercises|labkit|notebooks)(\.\w+)*")
A_SOURCE = re.compile(
    r"exercises\.phase\d\.[de]\d+_|`[de]\d+_\w+` of exercises\.phase\d$"
)  # as `imports_of` words it


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


def imported_source(cells: list[str]) -> str | None:
    """What cells import of the source of an exercise, in words: it is solved in the learner's copy, and a stub where answers run."""
    trees = [tree for cell in cells if (tree := parsed(without_magic(cell)))]
    uses = [words for tree in trees for words, _ in imports_of(compile(tree, "<answer>", "exec"))]
    return next((words for words in reversed(uses) if A_SOURCE.search(words)), None)
