"""Notebooks are what their sources say, companions run, and a check in a real kernel shows one box and no traceback."""

import os
import subprocess
import sys

import nbformat
import pytest
from rich.text import Text

from exercises.judging.sources import source_of
from exercises.publishing import build_notebooks
from exercises.publishing.build_notebooks import (
    build_student,
    companions,
    has_been_worked_in,
    read_notebook,
    stale,
    text_of,
    write,
)
from exercises.publishing.notebook_runs import Client
from labkit.paths import ROOT

# ------------------------------------------------------------------ what is in the repository


def test_no_notebook_is_stale(being_worked_in):
    """Byte for byte for the exercises; for the companions the cells without their outputs."""
    solutions = build_notebooks.SOLUTION
    own = {path for path in stale() if path.stem in being_worked_in and path.parent != solutions}
    assert stale().keys() - own == set(), "make notebooks"


def test_stale_notebooks_are_noticed(tmp_path, monkeypatch):
    for folder in ("STUDENT", "SOLUTION"):
        monkeypatch.setattr(build_notebooks, folder, tmp_path / folder)
        (tmp_path / folder).mkdir()
    texts = build_notebooks.wanted()
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    assert stale() == {}
    first, second, *_ = texts
    first.write_text(texts[first].replace("check(", "check (", 1), encoding="utf-8")
    second.unlink()
    (tmp_path / "STUDENT" / "p9e9_gone.ipynb").write_text("{}")
    (tmp_path / "STUDENT" / "p1e1_pairs.bak-1.ipynb").write_text("{}")  # a learner's own
    gone = tmp_path / "STUDENT" / "p9e9_gone.ipynb"
    assert stale() == {first: texts[first], second: texts[second], gone: ""}


# ------------------------------------------------------------------ what a learner wrote


def write_in(path, line):
    """Put a line into the first code cell, as a learner does who saves and has not run it. Returns the file's text."""
    nb = read_notebook(path)
    next(c for c in nb.cells if c.cell_type == "code").source += f"\n{line}"
    path.write_text(nbformat.writes(nb, version=4), encoding="utf-8")
    return path.read_text(encoding="utf-8")


def test_an_answer_that_was_typed_and_never_run_is_kept(tmp_path, capsys):
    path = tmp_path / "p1e1_pairs.ipynb"
    fresh = text_of(build_student(source_of("p1e1_pairs")))
    write(path, fresh)
    write(path, fresh)  # a generated one makes no copies
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    mine = write_in(path, "my_answer = 1")
    write(path, fresh)
    assert path.read_text(encoding="utf-8") == fresh
    assert (tmp_path / "p1e1_pairs.bak-1.ipynb").read_text(encoding="utf-8") == mine
    assert "the old one is kept as p1e1_pairs.bak-1.ipynb" in capsys.readouterr().out


def test_a_guess_in_a_companion_is_noticed_and_so_is_what_cannot_be_read(tmp_path, monkeypatch):
    original = companions()[0].read_text(encoding="utf-8")
    monkeypatch.setattr(build_notebooks, "NOTEBOOKS", tmp_path)
    path = companions()[0]
    path.write_text(original, encoding="utf-8")
    assert not has_been_worked_in(path)
    write_in(path, "guess = 7")
    assert has_been_worked_in(path)
    path.write_text("not JSON")
    assert has_been_worked_in(path)


# ------------------------------------------------------------------ in a kernel


def test_a_kernel_finds_the_exercises_the_pieces_and_the_small_engine(tmp_path):
    """They are installed with the course: a notebook runs in its own folder."""
    code = "import exercises.phase1, exercises.phase5.launching, notebooks.widgets\n"
    code += (
        "from exercises.capstone import your_engine as y\nwith y.engine_with({'slots': 1}): print('found')"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.stdout == "found\n", done.stderr


@pytest.mark.proof
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("source", companions(), ids=lambda path: path.stem)
def test_a_companion_runs_under_nbval(being_worked_in, source):
    if source.stem in being_worked_in:
        pytest.skip("you work in this notebook")
    nbval = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=60"]
    settings = ["-p", "no:cacheprovider", "-o", "addopts=", "--timeout=0"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *nbval, *settings, source],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


# ------------------------------------------------------------------ a check in a real kernel

SETUP = """
from exercises.judging import registry
from exercises.grading import *
from notebooks.widgets.guesses import Guesses
guesses = Guesses()
exercise = Exercise("p1t1_add", 1.0, add={})
exercise.heading, exercise.answers, exercise.says = "1.0", {"add": lambda a, b: a + b}, lambda asked: {}
exercise.grade = lambda add: exercise.judge("add", add, [(1, 2)])
registry.find = lambda name: exercise
"""
SLIPS = ["check()", "hint(3)", "check('p1t1_add')", "guesses.reveal('how many', 'eight', measured=6)"]
TRIED = {  # the line of the answer -> the line in place of a traceback
    "return a + b": None,
    "return undefined": "not yet: raises",
    "while True: pass": "not yet: endless",
    "quit()": "not yet: ends-python",
    "__import__('ctypes').string_at(0)": "not yet: crashes-python",
    "raise NotImplementedError('your turn')": "not attempted",
}


def test_in_jupyter_a_slip_is_told_in_one_line_and_a_check_in_one_box(tmp_path):
    tried = [f"def add(a, b):\n    {line}\ncheck('p1t1_add', add)" for line in TRIED]
    sources = (SETUP, *SLIPS, *tried)
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    Client(nb, tmp_path, 60, allow_errors=True).run()
    setup, *cells = nb.cells
    assert not setup.outputs
    for cell in cells[: len(SLIPS)]:
        (error,) = cell.outputs
        assert len(error.traceback) == 1 and error.traceback[0].startswith("error: "), cell.source
    for cell, (line, end) in zip(cells[len(SLIPS) :], TRIED.items()):
        box, *errors = cell.outputs
        text = Text.from_ansi(box.data["text/plain"]).plain
        assert text.count(" ─ ") == 1 and "<pre" in box.data["text/html"], line
        assert [error.traceback for error in errors] == ([[end]] if end else []), line
        assert ("add(1, 2)" in text) is bool(end and end.startswith("not yet")), line
