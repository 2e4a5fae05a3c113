"""Nothing that a learner wrote is lost."""

from pathlib import Path

import nbformat

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


def write_in(path: Path, line: str) -> str:
    """Put a line into the first code cell, as a learner does who saves and has not run it. Returns the file's text."""
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
