"""What a learner hands in: one file with the answers, and what `check` noted about them.

It is signed by nothing. A learner who can edit a notebook can edit this file, so the notes are the learner's word: `lab grade`
runs the answers again.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
from pydantic import BaseModel, Field, ValidationError

from exercises.judging import progress
from exercises.judging.sandbox import limit_memory, run_apart
from exercises.judging.sources import SOURCES, all_names, cut, source_of
from exercises.publishing.build_notebooks import build_solution, read_notebook, written_in
from labkit.errors import LabError
from labkit.foreign import visible
from labkit.paths import outputs, write_whole

ENDING = ".submission.json"
LARGEST = 20_000_000  # bytes of a file that is read
LONGEST_CODE = 200_000  # characters of an answer
TO_READ = 30.0  # seconds for what one learner handed in
TABLES = ("grades.csv", "totals.csv")  # what `lab grade` writes beside what was handed in


class Answer(BaseModel):
    """One exercise: the code cells of its notebook, and the notes."""

    cells: list[str]
    solved: bool | None = None  # None, as below: nothing is known, since no notes came with it
    tries: int | None = Field(None, ge=0, lt=10**6)
    hints: int | None = Field(None, ge=0, lt=100)
    first_try: str = Field("", max_length=40)
    solved_at: str = Field("", max_length=40)


class Submission(BaseModel):
    learner: str = Field(min_length=1, max_length=100)
    graders: str = ""
    answers: dict[str, Answer] = {}


@dataclass(frozen=True)
class Unread:
    """What was handed in and is not graded."""

    name: str
    why: str
    replaced: bool = False  # by a newer file of the same learner


def read_regular(path: Path) -> bytes:
    """A file's bytes.

    Raises:
        LabError: it is a link, a pipe or a device, it is too large, or it cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(file, "rb") as open_file:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise LabError("not a regular file")
            data = open_file.read(LARGEST + 1)
    except OSError as error:
        raise LabError(
            "not a regular file" if path.is_symlink() else f"cannot be read ({error.strerror})"
        ) from None
    if len(data) > LARGEST:
        raise LabError(f"larger than {LARGEST // 10**6} MB, not read")
    return data


def graders_fingerprint(exercises: Path = SOURCES) -> str:
    """Of all Python files in a folder `exercises`, without solutions: it differs where a grader has been changed."""
    whole = hashlib.sha256()
    for path in sorted(exercises.rglob("*.py")):
        whole.update(path.relative_to(exercises).as_posix().encode())
        whole.update(cut(read_regular(path).decode("utf-8", "replace")).student.encode())
    return whole.hexdigest()[:16]


def cells_of_answer(nb: nbformat.NotebookNode) -> list[str]:
    """The code of a notebook, but for the cells "Into the engine"."""
    code = (cell for cell in nb.cells if cell.cell_type == "code")
    return [cell.source for cell in code if not {"engine", "gpu"} & set(cell.metadata.get("tags", ()))]


def is_solution_notebook(name: str, cells: list[str]) -> bool:
    """Whether these are the cells of the course's own solution notebook."""
    return cells == cells_of_answer(build_solution(source_of(name)))


def answers_in(
    notebooks: Mapping[str, Path], notes: Mapping[str, dict[str, Any]] | None
) -> dict[str, Answer]:
    """The answers in exercise notebooks, by name; notebooks as they were given out are left out. `notes`: None if there are none.

    Raises:
        LabError: one of them is no notebook.
    """
    found = {}
    for name, path in notebooks.items():
        read_regular(path)
        cells = cells_of_answer(nb := read_notebook(path))
        if written_in(nb) or is_solution_notebook(name, cells):  # which is as it was generated, too
            noted = {} if notes is None else progress.FRESH | notes.get(name, {})
            found[name] = Answer(**noted | {"cells": cells})
    return found


def submit(learner: str, folder: Path) -> tuple[Submission, Path]:
    """Write outputs/NAME.submission.json from a folder of exercise notebooks.

    Raises:
        LabError: there is nothing to hand in, or the name has no letter.
    """
    stem = _stem(learner)
    if not stem or len(learner) > 100:
        raise LabError(f"{learner[:100]!r} is no name: lab submit 'Ada Lovelace'")
    notebooks = {name: path for name in all_names() if (path := folder / f"{name}.ipynb").is_file()}
    if not (answers := answers_in(notebooks, progress.load())):
        raise LabError("there is no answer yet: write one in a notebook of notebooks/exercises")
    submission = Submission(learner=learner, graders=graders_fingerprint(), answers=answers)
    path = outputs() / f"{stem}{ENDING}"
    write_whole(path, submission.model_dump_json(indent=1) + "\n")
    return submission, path


def _stem(learner: str) -> str:
    return re.sub(r"[^\w]+", "-", learner.lower()).strip("-_")


# ------------------------------------------------------------------ reading them


def submissions_in(folder: Path) -> list[Submission | Unread]:
    """All that was handed in: files of `lab submit`, of each learner the newest, and folders with exercise notebooks.

    A folder that is handed in bears the learner's name. It may hold the whole course: its notebooks, its notes and its graders
    are found. Each is read in a process of its own, within time and memory.
    """
    if not folder.is_dir():
        raise LabError(f"{folder} is not a folder: lab grade FOLDER, with what was handed in")
    found: list[Submission | Unread] = []
    newest: dict[str, str] = {}  # of the files: by the learner's name
    files = [path for path in folder.iterdir() if not path.name.startswith(".") and path.name not in TABLES]
    # Of the same moment: `ada (1)` comes after `ada`.
    for path in sorted(files, key=lambda path: (path.lstat().st_mtime, len(path.name))):
        name = visible(os.fsencode(path.name).decode("utf-8", "backslashreplace"))
        one = _read_apart(path, name)
        if isinstance(one, Submission) and not stat.S_ISDIR(path.lstat().st_mode):
            if not path.name.lower().startswith(
                _stem(one.learner) or "-"
            ):  # one learner does not hand in for another
                one.learner = visible(f"{one.learner}, in {name}", 200)
            elif older := newest.get(one.learner):
                found = [f for f in found if not (isinstance(f, Submission) and f.learner == one.learner)]
                found.append(
                    Unread(older, f"{name} is newer and of the same learner: only that one counts", True)
                )
            newest[one.learner] = name
        found.append(one)
    return found


def _read_apart(path: Path, name: str) -> Submission | Unread:
    told, code, _ = run_apart(partial(_told, path, name), TO_READ, prepare=limit_memory, at_most=3 * LARGEST)
    if code != 0:
        return Unread(name, "cannot be read within time and memory")
    what, _, rest = told.partition(b" ")
    try:
        if what == b"read":
            return Submission.model_validate_json(rest)
    except ValidationError:
        return Unread(name, "holds text that is no text")
    return Unread(name, visible(rest.decode("utf-8", "replace"), 300))


def _told(path: Path, name: str) -> bytes:
    try:
        submission = _handed_in(path, name)
        submission.answers = {n: submission.answers[n] for n in all_names() if n in submission.answers}
        for exercise, answer in submission.answers.items():
            if (length := sum(len(cell) + 1 for cell in answer.cells)) > LONGEST_CODE:
                what = f"{exercise} has {length:,} characters of code"
                raise LabError(f"{what}, and at most {LONGEST_CODE:,} are run")
        submission.learner = visible(submission.learner, 100)
        return b"read " + submission.model_dump_json().encode()
    except LabError as error:
        return b"why " + str(error).encode("utf-8", "backslashreplace")
    except (MemoryError, RecursionError, ValueError, OSError) as error:
        return f"why cannot be read ({type(error).__name__})".encode()


def _handed_in(path: Path, name: str) -> Submission:
    kind = path.lstat().st_mode
    if stat.S_ISREG(kind) and path.suffix == ".json":
        return _read(path)
    if stat.S_ISREG(kind):
        says = "neither a file of `lab submit` nor a folder: put it, unpacked, into a folder of the learner's name"
        raise LabError(says)
    if not stat.S_ISDIR(kind):
        raise LabError("not a regular file")
    files = list(path.rglob(f"*{ENDING}"))
    newest = max(files, key=lambda file: file.lstat().st_mtime, default=None)
    return _read(newest) if newest else _from_notebooks(path, name)


def _read(path: Path) -> Submission:
    try:
        return Submission.model_validate_json(read_regular(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise LabError(
            f"not a file of `lab submit` ({where}{': ' * bool(where)}{first['msg'][:60]})"
        ) from None


def _from_notebooks(folder: Path, name: str) -> Submission:
    notebooks: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.ipynb"), key=lambda path: path.lstat().st_mtime):  # the newest stays
        if path.parent.name != "solutions":
            notebooks[path.stem] = path
    notebooks = {name: notebooks[name] for name in all_names() if name in notebooks}
    if not notebooks:
        raise LabError("no file of `lab submit`, and no exercise notebook")
    notes = next(folder.rglob("progress.json"), None)
    graders = next(folder.rglob("exercises/grading.py"), None)
    try:
        noted = json.loads(read_regular(notes))["exercises"] if notes else None
        answers = answers_in(notebooks, noted)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, LabError):
            raise
        raise LabError(f"its notes cannot be read ({type(error).__name__})") from None
    return Submission(
        learner=name[:100], graders=graders_fingerprint(graders.parent) if graders else "", answers=answers
    )
