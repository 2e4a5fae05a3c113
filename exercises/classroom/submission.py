"""What a learner hands in: one file with the answers, and what `check` noted about them.

It is signed by nothing. Who can edit a notebook can edit this file, so the notes are the learner's word: `lab grade` runs
the answers again.
"""

import ast
import hashlib
import json
import platform
import re
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import nbformat
from pydantic import BaseModel, Field, ValidationError

from exercises.judging import progress
from exercises.judging.plain_runs import parsed, without_magic
from exercises.judging.sources import SOURCES, all_names, source_of
from exercises.publishing.build_notebooks import build_student
from labkit.errors import LabError
from labkit.machine import version_of
from labkit.paths import outputs, short, write_whole

SIGNED = "by nothing: anybody can edit this file, and `lab grade` runs the answers again"
ENDING = ".submission.json"
LARGEST = 20_000_000  # bytes of a file that is read
THE_COURSES = {
    "check",
    "hint",
    "grading.check",
    "grading.hint",
    "exercises.grading.check",
    "exercises.grading.hint",
}


class Answer(BaseModel):
    """One exercise: the cells without the calls of `check`, and the notes."""

    cells: list[str]
    solved: bool = False
    tries: int = Field(0, ge=0)
    hints: int = Field(0, ge=0)
    last: str = ""
    first_try: str = ""
    solved_at: str = ""


class Submission(BaseModel):
    learner: str = Field(min_length=1, max_length=100)
    signed: str = SIGNED
    made: str = ""
    versions: dict[str, str | None] = {}
    graders: str = ""
    answers: dict[str, Answer] = {}


def fingerprint(exercises: Path = SOURCES) -> str:
    """Of all Python files in a folder `exercises`: it differs where somebody has changed a grader."""
    whole = hashlib.sha256()
    for path in sorted(exercises.rglob("*.py")):
        whole.update(path.relative_to(exercises).as_posix().encode())
        whole.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return whole.hexdigest()[:16]


def code_of(path: Path) -> nbformat.NotebookNode:
    """A notebook's code cells: their text and their tags.

    Raises:
        LabError: it is no notebook.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a cell without an id is no trouble
            nb = nbformat.read(path, as_version=4)
        nb.cells = [
            nbformat.v4.new_code_cell(cell.source, metadata={"tags": list(cell.metadata.get("tags", ()))})
            for cell in nb.cells
            if cell.cell_type == "code"
        ]
        return nb
    except Exception as error:  # whatever is wrong with it
        raise LabError(f"{short(path)} is not a notebook ({type(error).__name__})") from None


def cells_of_answer(nb: nbformat.NotebookNode) -> list[str]:
    """The code of a notebook, but for the calls of `check` and `hint` and the cells "Into the engine"."""
    code = [
        without_magic(cell.source)
        for cell in nb.cells
        if cell.cell_type == "code" and not {"engine", "gpu"} & set(cell.metadata.get("tags", ()))
    ]
    trees = [parsed(cell) or ast.Module([], []) for cell in code]
    own = {node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}
    return [cell for cell in (_without_calls(cell, THE_COURSES - own) for cell in code) if cell]


def _without_calls(cell: str, functions: set[str]) -> str:
    """A cell without its statements that call one of these functions; empty if nothing else is in it."""
    body = (parsed(cell) or ast.Module([], [])).body
    calls = [node for node in body if _calls(node, functions)]
    if calls and len(calls) == len(body):
        return ""
    lines = cell.encode().splitlines(keepends=True)  # the places of the syntax tree count bytes
    for node in reversed(calls):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        rest = lines[last][node.end_col_offset :]
        lines[first : last + 1] = [lines[first][: node.col_offset] + b"pass" + rest]
    return b"".join(lines).decode()


def _calls(statement: ast.stmt, functions: set[str]) -> bool:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return False
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return any(ast.unparse(call.func) in functions for call in calls)


def answers_in(folder: Path, notes: dict[str, dict]) -> dict[str, Answer]:
    """The answers in a folder of exercise notebooks. What nobody has written in is none."""
    found = {}
    for name in all_names():
        path = folder / f"{name}.ipynb"
        if not path.is_file():
            continue
        cells = cells_of_answer(code_of(path))
        if cells != cells_of_answer(build_student(source_of(name))):
            noted = {k: v for k, v in notes.get(name, {}).items() if k in Answer.model_fields}
            found[name] = Answer(**(noted | {"cells": cells}))
    return found


def submit(learner: str, notebooks: Path) -> tuple[Submission, Path]:
    """Write outputs/NAME.submission.json from a folder of exercise notebooks.

    Raises:
        LabError: there is nothing to hand in, or the name has no letter.
    """
    stem = re.sub(r"[^\w]+", "-", learner.lower()).strip("-_")
    if not stem or len(learner) > 100:
        raise LabError(f"{learner[:100]!r} is no name: lab submit 'Ada Lovelace'")
    answers = answers_in(notebooks, progress.load())
    if not answers:
        raise LabError("there is no answer yet: write one in a notebook of notebooks/exercises")
    submission = Submission(
        learner=learner,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={
            "inference-lab": version_of("inference-lab"),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "torch": version_of("torch"),
            "numpy": version_of("numpy"),
        },
        graders=fingerprint(),
        answers=answers,
    )
    path = outputs() / f"{stem}{ENDING}"
    write_whole(path, submission.model_dump_json(indent=1) + "\n")
    return submission, path


# ------------------------------------------------------------------ reading them


def submissions_in(folder: Path) -> Iterator[Submission | str]:
    """All that was handed in: files of `lab submit`, and folders with exercise notebooks. What cannot be read: a line.

    A folder that somebody hands in bears the learner's name. It may hold the whole course: its notebooks, its notes and
    its graders are found.
    """
    if not folder.is_dir():
        raise LabError(f"{folder} is not a folder: lab grade FOLDER, with what was handed in")
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name.endswith(".json"):
            yield _read(path)
        elif path.is_dir():
            files = sorted(path.rglob(f"*{ENDING}"))
            try:
                yield _read(files[0]) if files else _from_notebooks(path)
            except LabError as error:
                yield f"{path.name}: {error}"


def _read(path: Path) -> Submission | str:
    try:
        if path.stat().st_size > LARGEST:
            return f"{path.name}: larger than {LARGEST // 10**6} MB, not read"
        return Submission.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return f"{path.name}: not a file of `lab submit` ({where + ': ' if where else ''}{first['msg'][:60]})"
    except OSError as error:
        return f"{path.name}: cannot be read ({error.strerror})"


def _from_notebooks(folder: Path) -> Submission | str:
    names = all_names()
    found = sorted(p for p in folder.rglob("*.ipynb") if p.stem in names and p.parent.name != "solutions")
    if not found:
        return f"{folder.name}: no file of `lab submit`, and no exercise notebook"
    notes = next(folder.rglob("progress.json"), None)
    graders = next(folder.rglob("exercises/grading.py"), None)
    try:
        noted = json.loads(notes.read_text(encoding="utf-8"))["exercises"] if notes else {}
        answers = answers_in(found[0].parent, noted)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{folder.name}: its notes or notebooks cannot be read ({type(error).__name__})"
    return Submission(
        learner=folder.name[:100], graders=fingerprint(graders.parent) if graders else "", answers=answers
    )
