"""What a learner hands in: one file with the answers, and what `check` noted about them.

It is signed by nothing. A learner who can edit a notebook can edit this file, so the notes are the learner's word: `lab grade`
runs the answers again.
"""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

import nbformat
from pydantic import BaseModel, Field, ValidationError

from exercises.judging import progress
from exercises.judging.sources import all_names, source_of
from exercises.publishing.build_notebooks import build_solution, build_student, read_notebook
from labkit.errors import LabError
from labkit.foreign import visible
from labkit.paths import outputs, write_whole

ENDING = ".submission.json"
LARGEST = 2_000_000  # bytes of a file that is read: ten times what all exercises take
TABLE = "grades.csv"  # what `lab grade` writes beside what was handed in


class Answer(BaseModel):
    """One exercise: the code cells of its notebook, and the notes."""

    cells: list[str]
    solved: bool = False
    tries: int = Field(0, ge=0, lt=10**6)
    hints: int = Field(0, ge=0, lt=100)
    first_try: str = Field("", max_length=40)
    solved_at: str = Field("", max_length=40)


class Submission(BaseModel):
    learner: str = Field(max_length=200)
    answers: dict[str, Answer] = {}


@dataclass(frozen=True)
class Unread:
    """What was handed in and is not graded."""

    name: str
    why: str


def cells_of_answer(nb: nbformat.NotebookNode) -> list[str]:
    """The code of a notebook, but for the cells "Into the engine"."""
    code = (cell for cell in nb.cells if cell.cell_type == "code")
    return [cell.source for cell in code if not {"engine", "gpu"} & set(cell.metadata.get("tags", ()))]


def is_solution_notebook(name: str, cells: list[str]) -> bool:
    """Whether these are the cells of the course's own solution notebook."""
    return cells == cells_of_answer(build_solution(source_of(name)))


def submit(learner: str, folder: Path) -> tuple[Submission, Path]:
    """Write outputs/NAME.submission.json from a folder of exercise notebooks; those without a change are left out.

    Raises:
        LabError: there is nothing to hand in, a notebook cannot be read, or the name has no letter.
    """
    stem = re.sub(r"[^\w]+", "-", learner.lower()).strip("-_")
    if not stem or len(learner) > 100:
        raise LabError(f"{learner[:100]!r} is no name: lab submit 'Ada Lovelace'")
    notes, answers = progress.load(), {}
    for name in all_names():
        if (path := folder / f"{name}.ipynb").is_file():
            cells = cells_of_answer(read_notebook(path))
            if cells != cells_of_answer(build_student(source_of(name))):
                answers[name] = Answer(**progress.FRESH | notes.get(name, {}) | {"cells": cells})
    if not answers:
        raise LabError("there is no answer yet: write one in a notebook of notebooks/exercises")
    submission = Submission(learner=learner, answers=answers)
    path = outputs() / f"{stem}{ENDING}"
    write_whole(path, submission.model_dump_json(indent=1) + "\n")
    return submission, path


def submissions_in(folder: Path) -> list[Submission | Unread]:
    """All that was handed in: files of `lab submit`, and folders that hold one.

    The name of the file or folder is the learner's: what a file says of itself changes no other learner's grade. Of
    several files of one learner the newest counts, `ada.submission.json` beside the folder `ada` included.
    """
    if not folder.is_dir():
        raise LabError(f"{folder} is not a folder: lab grade FOLDER, with what was handed in")
    by_learner: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(".") and path.name != TABLE:
            by_learner.setdefault(path.name.removesuffix(ENDING), []).append(path)
    return [_read(paths) for paths in by_learner.values()]


def _read(paths: list[Path]) -> Submission | Unread:
    """One learner's submission.

    Args:
        paths: a file, a folder, or both.
    """
    name = visible(os.fsencode(paths[0].name).decode("utf-8", "backslashreplace"), 100)
    try:
        files: list[Path] = []
        for path in paths:
            files += path.rglob(f"*{ENDING}") if path.is_dir() and not path.is_symlink() else [path]
        files = [file for file in files if file.name.endswith(ENDING)] or files
        path = max(files, key=lambda file: file.lstat().st_mtime, default=paths[0])
        if not path.name.endswith(ENDING):
            raise LabError("not a file of `lab submit`, nor a folder with one")
        submission = Submission.model_validate_json(_bytes_of(path))
        answers = submission.answers
        submission.answers = {exercise: answers[exercise] for exercise in all_names() if exercise in answers}
        if not submission.answers:
            raise LabError("holds no answer to an exercise")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        says = f"not a file of `lab submit` ({where}{': ' * bool(where)}{first['msg'][:60]})"
        return Unread(name, visible(says, 300))
    except (LabError, OSError) as error:
        return Unread(name, visible(error, 300))
    submission.learner = name.removesuffix(ENDING)
    return submission


def _bytes_of(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(file, "rb") as open_file:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise LabError("not a regular file")
        data = open_file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise LabError(f"larger than {LARGEST // 10**6} MB, not read")
    return data
