"""Nothing that a learner wrote is lost, and nothing that an answer started lives on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exercises.judging.sources import source_of
from exercises.publishing import build_notebooks
from exercises.publishing.build_notebooks import (
    build_student,
    companions,
    has_been_worked_in,
    read_notebook,
    text_of,
    write,
)
from labkit.paths import ROOT

# ------------------------------------------------------------------ notebooks


def write_in(path: Path, line: str) -> str:
    """Put a line into the first code cell, as somebody does who saves and has not run it. Returns the file's text."""
    import nbformat

    nb = read_notebook(path)
    next(c for c in nb.cells if c.cell_type == "code").source += f"\n{line}"
    path.write_text(nbformat.writes(nb, version=4), encoding="utf-8")
    return path.read_text(encoding="utf-8")


def test_an_answer_that_was_typed_and_never_run_is_kept(tmp_path, capsys):
    path = tmp_path / "p1e1_pairs.ipynb"
    fresh = text_of(build_student(source_of("p1e1_pairs")))
    write(path, fresh)
    assert not has_been_worked_in(path)
    write(path, fresh)  # a generated one makes no copies
    assert [p.name for p in tmp_path.iterdir()] == [path.name]

    mine = write_in(path, "my_answer = 1")
    assert has_been_worked_in(path)
    write(path, fresh)
    assert path.read_text(encoding="utf-8") == fresh
    assert (tmp_path / "p1e1_pairs.bak-1.ipynb").read_text(encoding="utf-8") == mine
    assert (
        "was changed by a learner; the old one is kept as p1e1_pairs.bak-1.ipynb" in capsys.readouterr().out
    )


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


# ------------------------------------------------------------------ processes and threads

SCRIPT = """
import os, sys, time
from exercises.grading import Exercise, guard
from exercises.judging.sandbox import judge_safely
def endless(a, b):
    open(sys.argv[1], "w").write(str(os.getpid()))
    while True:
        pass
judge_safely(Exercise("p1t1_add", ("add",), lambda f: guard(f, 1, 2)), [endless], 0.2)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_child_ends_by_itself_when_its_parent_is_killed(tmp_path):
    note = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT, str(note)], cwd=ROOT)
    while not (note.exists() and note.read_text()):
        assert parent.poll() is None
        time.sleep(0.01)
    parent.send_signal(signal.SIGSTOP)  # it cannot stop the child any more, however slow this machine is
    parent.kill()
    parent.wait()
    child = int(note.read_text())
    while True:  # pytest's own time limit ends this
        try:
            os.kill(child, 0)
            if Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.05)
