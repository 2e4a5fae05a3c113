"""`my_engine/`: an engine whose parts are the learner's answers. A right answer is put there; until then a part is the course's.

The files lie at the root of the repository, where a learner sees them and `import my_engine` finds them. Git ignores them: they
are the learner's, and no update of the course may touch them. They are plain files, to be read and changed by hand.
"""

import ast
import builtins
import linecache
from collections.abc import Iterator, Sequence
from pathlib import Path
from symtable import SymbolTable, symtable
from types import ModuleType
from typing import Any, NamedTuple

from exercises.judging.sources import solved
from labkit.paths import ROOT, outputs, write_whole

COMPLETE = "notebooks.solutions.my_engine"
"""The engine with the course's parts."""

FROM_COURSE = "from exercises.capstone.parts import course_part\n\n"  # in a file with a part of the course
PARTS = {
    "p1e1_pairs": ("tokenizer", "count_pairs", "merge"),
    "p1e3_streaming": ("tokenizer", "Streamer"),
    "p2e1_causal_mask": ("model", "may_see"),
    "p2e2_one_head": ("model", "one_head"),
    "p2e6_top_p": ("model", "keep_top_p"),
    "p1e5_kv_bytes": ("cache", "kv_bytes", "users_that_fit"),
    "p2e5_cache": ("cache", "Cache"),
    "p3e2_block_table": ("cache", "slots"),
    "p3e1_allocate": ("blocks", "Allocator"),
    "p3e3_prefix": ("blocks", "block_names", "find_prefix"),
    "p4e2_preemption": ("scheduler", "step"),
    "p4e3_chunks": ("scheduler", "tokens_now"),
    "p4e5_percentiles_goodput": ("engine", "percentile", "goodput"),
}
"""By exercise: the file of the engine, and which of its functions and classes are the answer."""


class CannotKeep(Exception):
    """An answer that uses what no file can hold, such as a tensor made in another cell."""


class Part(NamedTuple):
    """A part as it stands in the learner's engine. lines: of Python; 0: it is the course's."""

    exercise: str
    file: str
    names: tuple[str, ...]
    lines: int


def folder() -> Path:
    """Where the learner's engine lies: at the root of the repository, or in INFERENCE_LAB_OUTPUTS, where that is set."""
    return (ROOT if outputs() == ROOT / "outputs" else outputs()) / "my_engine"


def complete() -> Path:
    return ROOT.joinpath(*COMPLETE.split("."))


def course_part(exercise: str) -> Any:
    """The course's answers to an exercise, in place of a part that the learner has not written: one, or a tuple."""
    _, *names = PARTS[exercise]
    answers = tuple(solved(exercise, names).values())
    return answers if len(names) > 1 else answers[0]


def make_folder() -> Path:
    """The learner's engine; files that are missing are written, with the course's parts."""
    for source in sorted(complete().glob("*.py")):
        if not (target := folder() / source.name).is_file():
            write_whole(target, source.read_text(encoding="utf-8"))
    return folder()


def put(exercise: str, answers: Sequence[Any]) -> str:
    """Put the answers to an exercise into the learner's engine.

    Returns:
        What to tell the learner; nothing if the exercise is not a part of it.
    """
    if exercise not in PARTS:
        return ""
    file, *names = PARTS[exercise]
    wanted = {getattr(answer, "__name__", ""): answer for answer in answers}
    try:
        if missing := {*names} - wanted.keys():
            raise CannotKeep(f"{min(missing)} was not found: write it with `def` or `class`, under this name")
        path = make_folder() / f"{file}.py"
        text = path.read_text(encoding="utf-8")
        source = source_of_answers([wanted[name] for name in names], names_in(text))
        course = names_in((complete() / path.name).read_text(encoding="utf-8"))
        helpers = {node.name for node in definitions(source)} - {*names}
        if taken := helpers & course:
            raise CannotKeep(f"your {min(taken)} has a name that the engine uses: give it another one")
        write_whole(path, replaced(text, names, source))
    except (CannotKeep, OSError, SyntaxError) as error:
        return f"Your engine keeps the part it had: {error}"
    return f"It is a part of your engine now: my_engine/{file}.py. `lab mine` runs it."


def parts() -> Iterator[Part]:
    """All parts of the learner's engine, in the order of its files."""
    for exercise, (file, *names) in PARTS.items():
        path = folder() / f"{file}.py"
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        nodes = [node for node in definitions(text) if node.name in names]
        yield Part(exercise, file, tuple(names), sum(len(span(node)) for node in nodes))


# ------------------------------------------------------------------ the text of a file


def definitions(text: str) -> list[Any]:
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [node for node in ast.parse(text).body if isinstance(node, kinds)]


def names_of(node: ast.stmt) -> set[str]:
    """What a statement of a file imports, defines, or takes from the course."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("course_part("):
        return {name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name)}
    return {node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else set()


def names_in(text: str) -> set[str]:
    return set().union(*map(names_of, ast.parse(text).body))


def span(node: Any) -> range:
    """The lines of a statement, counted from 0, decorators included."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return range(first - 1, node.end_lineno)


def replaced(text: str, names: Sequence[str], new: str) -> str:
    """A file with these functions or classes, or the course's in their place, replaced by new text."""
    lines = text.splitlines()
    old = [node for node in ast.parse(text).body if names_of(node) & {*names}]
    if not old:
        raise CannotKeep(f"no {' or '.join(names)} is in its file")
    first = span(old[0])[0]
    gone = {number for node in old for number in span(node)}
    own = {node.name for node in definitions(new)}  # helpers that came with an earlier answer
    gone |= {number for node in definitions(text) if node.name in own for number in span(node)}
    before = [line for number, line in enumerate(lines) if number not in gone and number < first]
    after = [line for number, line in enumerate(lines) if number not in gone and number > first]
    whole = ["\n".join(before).rstrip(), new.strip(), "\n".join(after).strip()]
    text = "\n\n\n".join(piece for piece in whole if piece) + "\n"
    return text if " = course_part(" in text else text.replace(FROM_COURSE, "")


# ------------------------------------------------------------------ the text of an answer


def source_of_answers(answers: Sequence[Any], known: set[str]) -> str:
    """The source of functions and classes, with all of the learner's that they use, from whichever cell.

    Args:
        known: names that the file has already; they are not brought along, unless the learner wrote them.

    Raises:
        CannotKeep: something has no source.
    """
    seen: set[str] = set()
    small: list[str] = []  # imports and constants
    found: list[str] = []

    def add(name: str, thing: Any) -> None:
        lines, node, names = written(thing)
        source = "\n".join(lines[i] for i in span(node))
        for use in sorted({*names_used(symtable(source, name, "exec"))} & names.keys()):
            if use not in seen | vars(builtins).keys():
                seen.add(use)
                bring(use, names[use], names.get("__name__"))
        found.append(source)

    def bring(name: str, thing: Any, here: str | None) -> None:
        its_name, module = getattr(thing, "__name__", None), module_of(thing)
        if its_name and module == here:
            add(name, thing)
        elif name in known and module_of(thing):
            return
        elif isinstance(thing, ModuleType):
            small.append(f"import {its_name} as {name}" if its_name != name else f"import {name}")
        elif its_name and module:
            small.append(f"from {module} import {its_name}" + (f" as {name}" if its_name != name else ""))
        elif name not in known and isinstance(thing, (int, float, str, bytes, tuple, type(None))):
            small.append(f"{name} = {thing!r}")
        else:
            raise CannotKeep(f"the answer uses {name}, which another cell makes: make it inside the answer")

    for answer in answers:
        seen.add(answer.__name__)
    for answer in answers:
        add(answer.__name__, answer)
    return "\n\n\n".join(["\n".join(small)] * bool(small) + found)


def names_used(table: SymbolTable) -> Iterator[str]:
    """The names that a piece of code takes from outside of its functions."""
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module"):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from names_used(inner)


def module_of(thing: Any) -> str | None:
    """The module in which a function or class was written; of a module itself its name; None for any other value."""
    return thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)


def written(thing: Any) -> tuple[list[str], ast.stmt, dict[str, Any]]:
    """Where a function or class was written: the lines of its cell, its statement there, and the cell's names."""
    members = vars(thing).values() if isinstance(thing, type) else [thing]
    for member in members:
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if code := getattr(function, "__code__", None):
            text = "".join(linecache.getlines(code.co_filename))
            node = next((n for n in definitions(text) if n.name == thing.__name__), None)
            if node is not None:
                return text.splitlines(), node, function.__globals__
    raise CannotKeep(f"the source of {thing.__name__} was not found: write it with `def` or `class`")
