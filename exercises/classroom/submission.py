"""What a learner hands in: one file with the answers, and what `check` noted about them.

It is signed by nothing. Who can edit a notebook can edit this file, so the notes are the learner's word: `lab grade` runs
the answers again.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from pydantic import BaseModel, Field, ValidationError

from exercises.judging import progress
from exercises.judging.sources import SOURCES, all_names
from exercises.publishing.build_notebooks import read_notebook, written_in
from labkit.errors import LabError
from labkit.paths import outputs, write_whole

ENDING = ".submission.json"
LARGEST = 20_000_000  # bytes of a file that is read
TABLES = ("grades.csv", "totals.csv")  # what `lab grade` writes beside what was handed in


class Answer(BaseModel):
    """One exercise: the code cells of its notebook, and the notes."""

    cells: list[str]
    solved: bool | None = None  # None, as below: nothing is known, since no notes came with it
    tries: int | None = Field(None, ge=0)
    hints: int | None = Field(None, ge=0)
    first_try: str = ""
    solved_at: str = ""


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


def graders_fingerprint(exercises: Path = SOURCES) -> str:
    """Of all Python files in a folder `exercises`: it differs where somebody has changed a grader."""
    whole = hashlib.sha256()
    for path in sorted(exercises.rglob("*.py")):
        whole.update(path.relative_to(exercises).as_posix().encode())
        whole.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return whole.hexdigest()[:16]


def cells_of_answer(nb: nbformat.NotebookNode) -> list[str]:
    """The code of a notebook, but for the cells "Into the engine"."""
    return [
        cell.source
        for cell in nb.cells
        if cell.cell_type == "code" and not {"engine", "gpu"} & set(cell.metadata.get("tags", ()))
    ]


def answers_in(
    notebooks: Mapping[str, Path], notes: Mapping[str, dict[str, Any]] | None
) -> dict[str, Answer]:
    """The answers in exercise notebooks, by name. What nobody has written in is none. `notes`: None if there are none.

    Raises:
        LabError: one of them is no notebook.
    """
    read = {name: read_notebook(path) for name, path in notebooks.items()}
    return {
        name: Answer(
            **({} if notes is None else progress.FRESH | notes.get(name, {})) | {"cells": cells_of_answer(nb)}
        )
        for name, nb in read.items()
        if written_in(nb)
    }


def submit(learner: str, folder: Path) -> tuple[Submission, Path]:
    """Write outputs/NAME.submission.json from a folder of exercise notebooks.

    Raises:
        LabError: there is nothing to hand in, or the name has no letter.
    """
    stem = re.sub(r"[^\w]+", "-", learner.lower()).strip("-_")
    if not stem or len(learner) > 100:
        raise LabError(f"{learner[:100]!r} is no name: lab submit 'Ada Lovelace'")
    notebooks = {name: folder / f"{name}.ipynb" for name in all_names()}
    answers = answers_in({n: path for n, path in notebooks.items() if path.is_file()}, progress.load())
    if not answers:
        raise LabError("there is no answer yet: write one in a notebook of notebooks/exercises")
    submission = Submission(learner=learner, graders=graders_fingerprint(), answers=answers)
    path = outputs() / f"{stem}{ENDING}"
    write_whole(path, submission.model_dump_json(indent=1) + "\n")
    return submission, path


# ------------------------------------------------------------------ reading them


def submissions_in(folder: Path) -> Iterator[Submission | Unread]:
    """All that was handed in: files of `lab submit`, of each learner the newest, and folders with exercise notebooks.

    A folder that somebody hands in bears the learner's name. It may hold the whole course: its notebooks, its notes and
    its graders are found.
    """
    if not folder.is_dir():
        raise LabError(f"{folder} is not a folder: lab grade FOLDER, with what was handed in")
    newest: dict[str, tuple[Path, Submission]] = {}  # of the files: by the learner's name
    files = [path for path in folder.iterdir() if not path.name.startswith(".") and path.name not in TABLES]
    # Of the same moment: `ada (1)` comes after `ada`.
    for path in sorted(files, key=lambda path: (_last_change(path), len(path.name))):
        try:
            found = _handed_in(path)
        except LabError as error:
            yield Unread(path.name, str(error))
            continue
        if path.is_dir():
            yield found
            continue
        if found.learner in newest:
            older = newest[found.learner][0].name
            yield Unread(older, f"{path.name} is newer and of the same learner: only that one counts", True)
        newest[found.learner] = path, found
    yield from (found for _, found in newest.values())


def _handed_in(path: Path) -> Submission:
    if path.suffix == ".json":
        return _read(path)
    if not path.is_dir():
        raise LabError(
            "neither a file of `lab submit` nor a folder: put it, unpacked, into a folder of the learner's name"
        )
    files = list(path.rglob(f"*{ENDING}"))
    return _read(max(files, key=_last_change)) if files else _from_notebooks(path)


def _last_change(path: Path) -> float:
    return path.lstat().st_mtime


def _read(path: Path) -> Submission:
    try:
        if path.stat().st_size > LARGEST:
            raise LabError(f"larger than {LARGEST // 10**6} MB, not read")
        return Submission.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        said = f"{where + ': ' if where else ''}{first['msg'][:60]}"
        raise LabError(f"not a file of `lab submit` ({said})") from None
    except OSError as error:
        raise LabError(f"cannot be read ({error.strerror})") from None


def _from_notebooks(folder: Path) -> Submission:
    notebooks: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.ipynb"), key=_last_change):  # the newest stays
        if path.parent.name != "solutions":
            notebooks[path.stem] = path
    notebooks = {name: notebooks[name] for name in all_names() if name in notebooks}
    if not notebooks:
        raise LabError("no file of `lab submit`, and no exercise notebook")
    notes = next(folder.rglob("progress.json"), None)
    graders = next(folder.rglob("exercises/grading.py"), None)
    try:
        noted = json.loads(notes.read_text(encoding="utf-8"))["exercises"] if notes else None
        answers = answers_in(notebooks, noted)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(f"its notes cannot be read ({type(error).__name__})") from None
    fingerprint = graders_fingerprint(graders.parent) if graders else ""
    return Submission(learner=folder.name[:100], graders=fingerprint, answers=answers)
