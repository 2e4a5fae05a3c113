"""`lab progress`, `lab check` and `lab reset`: what a learner reads, also after every kind of mistake."""

import json
import signal

import nbformat
import pytest
from jupyter_client.asynchronous import AsyncKernelClient

from exercises.grading import Verdict
from exercises.judging import progress
from exercises.judging.registry import find
from exercises.judging.sources import all_names, all_sources, name_of, title_of
from exercises.publishing import commands, notebook_runs
from labkit.catalog import LEVELS, all_scripts, first_line
from labkit.paths import outputs, write_whole
from labkit.predictions import Prediction
from labkit.reports import report_of
from tests.exercises.classroom.handed_in import COUNT, COUNT_ONCE, MERGE, fresh, solve


@pytest.fixture
def books(tmp_path, monkeypatch):
    """A folder of notebooks with one exercise in it, in place of the course's own."""
    folder = tmp_path / "notebooks"
    (folder / "exercises").mkdir(parents=True)
    monkeypatch.setattr(commands, "NOTEBOOKS", folder)
    (folder / "exercises" / "p1e1_pairs.ipynb").write_text(fresh("p1e1_pairs"), encoding="utf-8")
    return folder


def write(path, *sources, tags=()):
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    for cell, tag in zip(cells, tags):
        cell.metadata["tags"] = [tag]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def run(capsys, *words):
    """(exit code, what was printed, what was complained), through the commands' main."""
    code = commands.main(words)
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert max((len(line) for line in out.splitlines() if "/" not in line), default=0) <= 100
    return code, out, err


def refused(capsys, *words):
    """The one line that a mistake gets."""
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    return err


# ------------------------------------------------------------------ progress


def test_progress_of_a_beginner(capsys, books):
    code, out, _ = run(capsys, "progress")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80 and all(title_of(source) in out for source in all_sources())
    assert f"0 of {len(all_names())} exercises solved" in out
    assert "predictions: none yet" in out and "lab run kv_cache_lab --predict" in out
    assert "next: 1.1 Which pair comes most often?" in out
    assert "jupyter lab notebooks/exercises/p1e1_pairs.ipynb" in out and "lab submit" not in out
    progress.note_check("p1e1_pairs", Verdict("correct"))
    assert "next: 2.1" in run(capsys, "progress")[1], "the core comes before what is deep"


def test_progress_says_what_is_solved_tried_hinted_and_guessed(capsys, books):
    progress.note_check("p1e1_pairs", Verdict("correct"))
    for _ in range(2):
        progress.note_check("p1e2_encode", Verdict("not yet", "encode-longest-first"))
    progress.note_hint("p1e2_encode", 2)
    for name, points in (("kv_cache", [3, 1, None]), ("notebook", [2])):
        predictions = [Prediction("a", "?", points=p).to_json() for p in points]
        report = outputs() / "reports" / "phase2" / f"{name}.json"
        write_whole(report, json.dumps({"predictions": predictions}))
    (outputs() / "reports" / "phase2" / "broken.json").write_text("{")
    code, out, _ = run(capsys, "progress")
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert code == 0
    assert "solved" in rows["p1e1"] and "tr" not in rows["p1e1"]
    assert "2 tries" in rows["p1e2"] and "2 of 4" in rows["p1e2"]
    assert "not tried" in rows["p1e3"]
    assert "1 of" in out and "predictions: 6 of 9 points, 3 guesses" in out
    after = out[out.index("next: 1.2") :]
    assert "last diagnosis: encode-longest-first" in after and "lab hint p1e2_encode" in after
    assert "its notebook is missing: lab reset p1e2_encode" in after


# ------------------------------------------------------------------ next


def run_in_full(*scripts, quick=False):
    for script in scripts:
        write_whole(report_of(script), json.dumps({"predictions": [], "in_full": not quick}))


def test_next_leads_along_a_path(books, capsys):
    def following(level="core"):
        assert commands.main(["next", level]) == 0
        return capsys.readouterr().out.splitlines()[0]

    scripts = all_scripts("core")
    run_in_full(scripts[0], quick=True)
    assert following() == f"next: tokenization_lab (core): {first_line(scripts[0])}"
    run_in_full(scripts[0])
    assert following() == following("operations") == "next: 1.1 Which pair comes most often?"
    progress.note_check("p1e1_pairs", Verdict("correct"))
    assert following().startswith("next: embedding_explorer")
    run_in_full(*scripts)
    assert following().startswith("next: 2.1 ")
    assert following("deep").startswith("next: 1.2 ")
    for source in all_sources():
        if commands.level_of(source) == "core":
            progress.note_check(name_of(source), Verdict("correct"))
    assert "This path is complete" in following()
    assert following("operations").startswith("next: workload_simulator (operations)")
    by_level = {level: [] for level in LEVELS}
    for source in all_sources():
        by_level[commands.level_of(source)].append(title_of(source).split()[0])
    assert (
        by_level["operations"] == ["4.5", "4.6", "4.9", "4.10", "4.11", "5.6"] and "4.4" in by_level["deep"]
    )
    for name in all_names():
        progress.note_check(name, Verdict("correct"))
    out = run(capsys, "progress")[1]
    assert "next:" not in out and "lab submit 'Your Name'" in out


# ------------------------------------------------------------------ check


def test_check_of_a_fresh_notebook_then_of_a_wrong_answer_and_of_the_right_one(capsys, books):
    code, out, _ = run(capsys, "check", "p1e1")
    assert code == 1 and out.count("○ Not attempted") == 1 and "failed" not in out
    assert out.splitlines()[-1] == "2 of 4 code cells ran well · 2 cells wait for your answer"
    path = books / "exercises" / "p1e1_pairs.ipynb"
    solve(path, COUNT_ONCE, MERGE)
    before = path.read_bytes()
    code, out, _ = run(capsys, "check", str(path))
    assert code == 1 and "✗ Not yet" in out and "tried" in out
    assert (
        out.splitlines()[-1] == "2 of 4 code cells ran well · 1 answer is not right yet · 1 cell waits for it"
    )
    solve(path, COUNT, MERGE)
    code, out, _ = run(capsys, "check", str(path))
    assert code == 0 and "✓ Correct" in out and out.endswith("4 of 4 code cells ran well\n")
    assert "the course learned the same 20 merges" in out
    assert before != path.read_bytes() and not nbformat.read(path, as_version=4).cells[1].get("outputs")
    assert progress.of("p1e1_pairs")["solved"]


@pytest.mark.parametrize(
    ("cells", "says", "counts"),
    [
        (
            ["a = 0\n\n# [red]\nb = 1 / a", "print(b)", "1 + 1"],
            "Code cell 1 failed in line 4:\n    b = 1 / a\nZeroDivisionError: division by zero\n1 later cell failed",
            "0 of 3 code cells ran well · 2 failed · 1 skipped (this cell needs a GPU)",
        ),
        (["while True:\n    pass", "1", "1 + 1"], "The cell was stopped after 2 s.", "1 failed"),
        (["import os\nos._exit(1)", "1", "1 + 1"], "The cell ended the kernel", "2 failed"),
    ],
    ids=["raises", "never-ends", "ends-the-kernel"],
)
def test_check_says_what_failed(capsys, tmp_path, monkeypatch, cells, says, counts):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(notebook_runs, "CELL_SECONDS", 2)
    path = write(tmp_path / "mine.ipynb", *cells, tags=("x", "y", "gpu"))
    code, out, _ = run(capsys, "check", str(path))
    assert code == 1 and says in out and counts in out.splitlines()[-1]


def test_a_kernel_that_does_not_start_costs_a_line(capsys, tmp_path, monkeypatch):
    async def too_late(*_, **__):
        raise RuntimeError("Kernel didn't respond in 60 seconds")

    monkeypatch.setattr(AsyncKernelClient, "wait_for_ready", too_late)
    code, _, err = run(capsys, "check", str(write(tmp_path / "mine.ipynb", "1")))
    assert code == 2 and err.count("\n") == 1 and "in 60 seconds): try again" in err
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_hint_shows_the_hints_of_the_notebook(capsys):
    code, out, _ = run(capsys, "hint", "1.1")
    assert code == 0 and "Hint 1 of 4, a nudge" in out
    assert "no exercise is called 'nonsense'" in refused(capsys, "hint", "nonsense")


def test_a_broken_exercise_notebook_can_be_had_again(capsys, books):
    path = books / "exercises" / "p1e1_pairs.ipynb"
    for content in (
        b"",
        b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": 3}',
        b"\xff\xfe\x00",
    ):
        path.write_bytes(content)
        told = refused(capsys, "check", "p1e1")
        assert "is not a notebook" in told and "`lab reset p1e1_pairs` writes a fresh one" in told
    path.unlink()
    assert "is missing: `lab reset p1e1_pairs` writes it" in refused(capsys, "check", "p1e1")
    code, _, _ = run(capsys, "reset", "p1e1")
    assert code == 0 and path.read_text(encoding="utf-8") == fresh("p1e1_pairs")


@pytest.mark.parametrize("word", ["4.1", "p4e1", "p4e1_one_step", "p4e1_o"])
def test_a_number_is_a_name(word):
    """Though p4e10_router begins so, too."""
    assert commands.find_notebook(word, must_exist=False).stem == "p4e1_one_step" == find(word).name


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("nonsense", "no notebook is called 'nonsense'; `lab progress` lists the exercises"),
        ("p1e1_pair.ipynb.txt", "its name must end in .ipynb"),
        ("p1e1_pears", "did you mean p1e1_pairs?"),
        ("p1", "is the beginning of 6 notebooks: p1e1_pairs, "),
        ("elsewhere/p1e1_pairs.ipynb", "there is no notebook elsewhere/p1e1_pairs.ipynb"),
        ("[red]x", "no notebook is called '[red]x'"),
    ],
)
def test_unknown_names(capsys, books, word, says):
    assert says in refused(capsys, "check", word) and says in refused(capsys, "reset", word)


# ------------------------------------------------------------------ reset


def test_reset_keeps_the_old_one(capsys, books):
    path = books / "exercises" / "p1e1_pairs.ipynb"
    for number in (1, 2):
        solve(path, COUNT, MERGE, f"# {number}")
        mine = path.read_bytes()
        code, out, _ = run(capsys, "reset", "p1e1")
        kept = path.with_suffix(f".bak-{number}.ipynb")
        assert code == 0 and "is kept as" in out and kept.name in out.replace("\n", "")
        assert kept.read_bytes() == mine
        assert path.read_text(encoding="utf-8") == fresh("p1e1_pairs")
    code, out, _ = run(capsys, "reset", "p1e1_pairs.ipynb")
    assert code == 0 and "is fresh already" in out
    assert len(list(path.parent.glob("*.ipynb"))) == 3


def test_only_exercises_can_be_reset(capsys, books, tmp_path):
    companion = write(books / "phase1_tokens_embeddings.ipynb", "1")
    other = write(tmp_path / "p1e1_pairs.ipynb", "1")
    for path in (companion, other):
        before = path.read_bytes()
        assert "only the notebooks in notebooks/exercises can be reset" in refused(capsys, "reset", str(path))
        assert path.read_bytes() == before
