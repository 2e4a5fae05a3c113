"""What a learner hands in: one file with the answers, and what `check` noted about them.

It is signed by nothing. A learner who can edit a notebook can edit this file, so the notes are the learner's word: `lab grade`
runs the answers again.
"""

import ast
import os
import re
from dataclasses import dataclass
from pathlib import Path

import nbformat
from pydantic import BaseModel, Field, ValidationError

from exercises.judging import progress
from exercises.judging.sources import all_names, cut, source_of, whole_source
from exercises.publishing.build_notebooks import build_student, read_notebook
from labkit.errors import LabError
from labkit.foreign import visible
from labkit.paths import outputs, write_whole

ENDING = ".submission.json"
LARGEST = 2_000_000  # bytes of a file that is read: ten times what all exercises take
LONGEST_CELL = 100_000  # characters: no solution has more, and a parser may take a gigabyte for a million
TABLE = "grades.csv"  # what `lab grade` writes beside what was handed in
OF_SOME = "grades-only.csv"  # the same for `--only`
# A browser's second download: "ada.submission (1).json".
AGAIN = re.compile(r" ?\(\d+\)(?=(\.submission)?(\.json)?$)")


class Answer(BaseModel):
    """One exercise: the code cells of its notebook, and the notes."""

    cells: list[str]
    solved: bool = False
    tries: int = Field(0, ge=0, lt=10**6)
    hints: int = Field(0, ge=0, lt=100)
    edition: str = Field("", max_length=40)


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


def is_copied(name: str, cells: list[str]) -> bool:
    """Whether the course's solution stands in an answer, whatever is around it. Of a short solution this says nothing."""
    own = written(name, [cut(whole_source(name)).solution])
    return bool(own) and own <= written(name, cells)


def written(name: str, cells: list[str]) -> frozenset[str]:
    """The statements of an answer that its notebook does not hold as handed out; none if fewer than eight lines are new."""
    given = _definitions(cut(whole_source(name)).student)
    own = frozenset().union(*map(_definitions, cells)) - given
    lines = [line for each in own for line in each.splitlines() if line not in "\n".join(given).splitlines()]
    return own if len(lines) >= 8 else frozenset()


def _definitions(code: str) -> set[str]:
    """The statements of a cell that define or assign, without comments, docstrings and layout; none of a cell that is not Python."""
    if len(code) > LONGEST_CELL:
        return set()
    try:
        tree = ast.parse(code)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        kept = (node for node in tree.body if not isinstance(node, ast.Expr | ast.Import | ast.ImportFrom))
        return set(map(ast.unparse, kept))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()


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
            cells = cells_of_answer(nb := read_notebook(path))
            if cells != cells_of_answer(build_student(source_of(name))):
                edition = str(nb.metadata.get("inference_lab", {}).get("cells", ""))[:40]
                own = {"cells": cells, "edition": edition}
                answers[name] = Answer(**progress.FRESH | notes.get(name, {}) | own)
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
        if not path.name.startswith(".") and path.name not in (TABLE, OF_SOME):
            by_learner.setdefault(_name_of(path).removesuffix(ENDING), []).append(path)
    return [found for paths in by_learner.values() for found in _read(paths)]


def _name_of(path: Path) -> str:
    return path.name if path.is_dir() else AGAIN.sub("", path.name)


def _read(paths: list[Path]) -> list[Submission | Unread]:
    """One learner's submission, and what of it this edition of the course does not know.

    Args:
        paths: a file, a folder, or both.
    """
    name = visible(os.fsencode(_name_of(paths[0])).decode("utf-8", "backslashreplace"), 100)
    try:
        files: list[Path] = []
        for path in paths:
            files += path.rglob("*.submission*.json") if path.is_dir() and not path.is_symlink() else [path]
        files = [file for file in files if _name_of(file).endswith(ENDING)] or files
        path = max(files, key=lambda file: file.lstat().st_mtime, default=paths[0])
        if not _name_of(path).endswith(ENDING):
            raise LabError("not a file of `lab submit`, nor a folder with one")
        if path.is_symlink() or not path.is_file():
            raise LabError("not a regular file")
        if path.stat().st_size > LARGEST:
            raise LabError(f"larger than {LARGEST // 10**6} MB, not read")
        submission = Submission.model_validate_json(path.read_bytes())
        answers = submission.answers
        submission.answers = {exercise: answers[exercise] for exercise in all_names() if exercise in answers}
        if not submission.answers:
            raise LabError("holds no answer to an exercise of this edition")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        says = f"not a file of `lab submit` ({where}{': ' * bool(where)}{first['msg'][:60]})"
        return [Unread(name, visible(says, 300))]
    except (LabError, OSError) as error:
        return [Unread(name, visible(error, 300))]
    submission.learner = name.removesuffix(ENDING)
    unknown = ", ".join(answers.keys() - submission.answers)
    older = ", ".join(sorted(file.name for file in files if file != path))
    notes = [f"another edition of the course: this one has no {unknown}"] * bool(unknown)
    notes += [f"older, and not graded: {older}"] * bool(older)
    return [submission, *(Unread(submission.learner, visible(says, 300)) for says in notes)]
