"""`lab submit` and `lab grade`: a class of twelve, three of whom cheat and two of whom crash."""

import contextlib
import csv
import json
import shutil

import pytest

from exercises.classroom import commands
from exercises.judging import progress
from exercises.judging.sources import solution_of
from labkit.command import main as lab
from labkit.paths import ROOT, write_whole
from tests.exercises.classroom.handed_in import COUNT, COUNT_ONCE, MERGE, hand_in, notebooks, of

FIRST_TRY = """
hint("p1e1_pairs")
def merge(tokens, pair, new_id):
    return []
check("p1e1_pairs", count_pairs, merge)
"""
IMPORTED = "from phase1_tokens_embeddings.tokens.bpe import merge_pair as merge"
RENAMED = solution_of("p1e1_pairs").replace("merged", "out").replace("i +=", "i +=  ")
SEGFAULT = "import ctypes\ndef merge(tokens, pair, new_id):\n    ctypes.string_at(0)\n"
KILLED = "import os\ndef merge(tokens, pair, new_id):\n    os.kill(os.getpid(), 9)\n"


@pytest.fixture
def a_class(tmp_path):
    """Twelve folders: seven honest ones, three that cheat, two that crash."""
    folder = tmp_path / "handed in"
    for one in (
        of("ada", COUNT, MERGE, solved=True, tries=2, hints=1),
        of("ben", COUNT_ONCE, MERGE.replace("list(tokens)", "tokens[:]"), tries=4),
        of("cleo", COUNT, "%timeit 1\n" + FIRST_TRY + MERGE.replace("while rest", "while len(rest)")),
        of("dora", "1 / 0", COUNT, MERGE.replace("list(tokens)", "[*tokens]"), solved=True, tries=1),
        of("emil", "def count_pairs(tokens)\n    return {}"),
        of("ivy", IMPORTED + "\n" + COUNT, solved=True, tries=1),
        of("jon", RENAMED, solved=True, tries=1),
        of("kim", COUNT, SEGFAULT),
        of("lea", COUNT, KILLED),
    ):
        hand_in(folder / one.learner, one)
    notebooks(folder / "fred" / "notebooks" / "exercises", COUNT, MERGE.replace("list(tokens)", "tokens"))
    (folder / "gus").mkdir()
    (folder / "gus" / "essay.txt").write_text("The dog ate it.")
    whole = folder / "hal" / "inference-lab"
    notebooks(whole / "notebooks" / "exercises", COUNT_ONCE, MERGE.replace("first", "one"))
    shutil.copytree(ROOT / "exercises", whole / "exercises", ignore=shutil.ignore_patterns("__pycache__"))
    (whole / "exercises" / "phase1" / "grade_pairs.py").write_text("def grade_pairs(*args): pass")
    notes = {"exercises": {"p1e1_pairs": progress.FRESH | {"solved": True, "tries": 1}}}
    (whole / "outputs").mkdir()
    (whole / "outputs" / "progress.json").write_text(json.dumps(notes))
    return folder


def test_a_class_of_twelve(a_class, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert len(list(a_class.iterdir())) == 12
    assert commands.main(["grade", str(a_class)]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "Traceback" not in out
    with (a_class / "grades.csv").open() as file:
        rows = {row["learner"]: row for row in csv.DictReader(file)}
    came_out = {learner: (row["state"], row["mistake"]) for learner, row in rows.items()}
    assert came_out == {
        "ada": ("correct", ""),
        "ben": ("not yet", "pairs-counted-once"),
        "cleo": ("correct", ""),
        "dora": ("correct", ""),
        "emil": ("not yet", "raises"),
        "fred": ("not yet", "merge-changes-its-input"),
        "hal": ("not yet", "pairs-counted-once"),
        "ivy": ("not yet", "borrowed"),
        "jon": ("correct", ""),
        "kim": ("not yet", "crashes-python"),
        "lea": ("not yet", "crashes-python"),
    }
    with (a_class / "totals.csv").open() as file:
        totals = {row["learner"]: row for row in csv.DictReader(file)}
    assert len(totals) == 12 and (totals["ada"]["solved"], totals["ada"]["handed in"]) == ("1", "1")
    assert totals["gus"]["handed in"] == "0" and "no exercise notebook" in totals["gus"]["not read"]
    assert rows["ben"]["what was said"].endswith(".") and rows["ada"]["what was said"] == ""
    looks = {learner: row["look at"] for learner, row in rows.items() if row["look at"]}
    assert "uses `merge_pair` of phase1_tokens_embeddings.tokens.bpe" in looks.pop("ivy")
    assert looks.pop("jon") == "`merge` is the solution"
    assert (
        looks.pop("hal")
        == "noted as solved, but graded again: pairs-counted-once; `merge` is the same as that of ada"
    )
    assert looks == {"ada": "`merge` is the same as that of hal"}
    assert "hal: its graders are not the course's" in out.replace("\n", " ")
    assert "gus: no file of `lab submit`, and no exercise notebook" in out
    assert (rows["ada"]["tries"], rows["ada"]["hints"]) == ("2", "1")
    assert {rows["fred"][column] for column in ("tries", "hints", "noted as solved")} == {""}
    assert totals["fred"]["tries"] == "" and list(rows) == sorted(rows)
    assert "crashed Python" in rows["kim"]["what was said"] and "notebook" not in rows["kim"]["what was said"]


def test_one_answer_is_told_as_one(tmp_path, capsys, monkeypatch):
    notebooks(tmp_path / "notebooks" / "exercises", COUNT, MERGE)
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    assert commands.main(["submit", "Ada"]) == 0
    assert "1 answer, 0 noted as solved" in capsys.readouterr().out


def test_an_empty_folder_and_none(tmp_path, capsys):
    assert commands.main(["grade", str(tmp_path)]) == 2
    assert "nothing was handed in" in capsys.readouterr().err
    assert commands.main(["grade", str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_the_table_is_written_as_the_grading_goes(tmp_path, monkeypatch):
    """Whoever stops it keeps what is there."""
    for learner in ("ada", "ben"):
        hand_in(tmp_path, of(learner, COUNT, MERGE))

    def stopped(path, text):
        write_whole(path, text)
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "write_whole", stopped)
    with contextlib.suppress(KeyboardInterrupt):
        commands.main(["grade", str(tmp_path)])
    rows = (tmp_path / "grades.csv").read_text()
    assert "\nada," in rows and "\nben," not in rows
    assert not (tmp_path / "totals.csv").exists()


def test_lab_passes_it_on(capfd, tmp_path, monkeypatch):
    (tmp_path / "class").mkdir()
    monkeypatch.chdir(tmp_path)  # a folder is meant from here
    for words, says in (
        (
            ["grade", "class"],
            f"nothing was handed in: no file of `lab submit` and no notebooks in {tmp_path / 'class'}",
        ),
        (["submit", "?"], "'?' is no name"),
    ):
        assert lab(words) == 2
        out, err = capfd.readouterr()
        assert out == "" and err.count("\n") == 1 and err.startswith(f"error: {says}"), err
