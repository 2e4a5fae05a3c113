"""`lab submit` and `lab grade`: a class of twelve, three of whom cheat and two of whom crash, and worse ones."""

import contextlib
import csv
import json
import shutil

import nbformat
import pytest
from rich.console import Console

from exercises.classroom import commands, copies, report
from exercises.classroom.grade import Graded, grade
from exercises.classroom.submission import (
    Answer,
    Submission,
    cells_of_answer,
    fingerprint,
    submissions_in,
    submit,
)
from exercises.judging import progress
from exercises.judging.plain_runs import without_magic
from exercises.judging.sources import all_names, solution_of, source_of
from exercises.judging.verdict import Verdict
from exercises.publishing.build_notebooks import build_solution, build_student, text_of
from exercises.publishing.commands import print_progress, show_progress
from labkit.command import main as lab
from labkit.errors import LabError
from labkit.paths import ROOT, write_whole

IMPORTS = "from exercises.grading import check, hint"
COUNT = """
def count_pairs(tokens):
    counts = {}
    for i in range(1, len(tokens)):
        pair = (tokens[i - 1], tokens[i])
        counts[pair] = counts.get(pair, 0) + 1
    return counts
"""
MERGE = """
def merge(tokens, pair, new_id):
    out, rest = [], list(tokens)
    while rest:
        first = rest.pop(0)
        if rest and (first, rest[0]) == pair:
            rest.pop(0)
            first = new_id
        out.append(first)
    return out
"""
COUNT_ONCE = "def count_pairs(tokens):\n    return dict.fromkeys(zip(tokens, tokens[1:]), 1)\n"
IMPORTED = "from phase1_tokens_embeddings.tokens.bpe import merge_pair as merge"
PATCHED = """
import sys

def merge(tokens, pair, new_id):
    judging = sys.modules[".".join(["exercises", "judging", "judge"])]
    judging.same = lambda *args: True
    return 7
"""
FORGED = """
import json, os

def merge(tokens, pair, new_id):
    for pipe in range(3, 100):
        try:
            os.write(pipe, json.dumps({"state": "correct"}).encode())
        except OSError:
            pass
    os._exit(0)
"""
WRITES = (
    """
from pathlib import Path
Path("exercises", "grading.py").write_text("def check(*args): pass")
"""
    + MERGE
)
RENAMED = solution_of("p1e1_pairs").replace("merged", "out").replace("i +=", "i +=  ")
SEGFAULT = "import ctypes\ndef merge(tokens, pair, new_id):\n    ctypes.string_at(0)\n"
KILLED = "import os\ndef merge(tokens, pair, new_id):\n    os.kill(os.getpid(), 9)\n"
EATS = "def merge(tokens, pair, new_id):\n    return [bytearray(1 << 28) for _ in iter(int, 1)]\n"
LOOPS_IN_C = "def merge(tokens, pair, new_id):\n    return sum(iter(int, 1))\n"
PRINTS = "def merge(tokens, pair, new_id):\n    while True:\n        print('x' * 1000)\n"
FORKS = "import os\ndef merge(tokens, pair, new_id):\n    while True:\n        os.fork()\n"
ENDS_THE_GROUP = """
import os, signal

def merge(tokens, pair, new_id):
    room = int(open(f"/proc/{os.getppid()}/stat").read().rsplit(")", 1)[1].split()[1])
    os.killpg(os.getpgid(room), signal.SIGKILL)
"""
OWN_FILE = """
from pathlib import Path
Path("my_example.json").write_text("[1, 2]")
"""
NO_GRADER = """
import exercises.judging.registry as registry
exercise = registry.find("p1e1_pairs")
object.__setattr__(exercise, "grade", lambda *answers: None)

def merge(tokens, pair, new_id):
    return 7
"""
NO_CASES = """
import exercises.phase1.grade_encode as grading
grading._tables().clear()

def encode(word, ranks):
    return []
"""
ENDS_ALL = """
import os, signal

def merge(tokens, pair, new_id):
    keeper = os.getppid()
    room = int(open(f"/proc/{keeper}/stat").read().rsplit(")", 1)[1].split()[1])
    os.kill(room, signal.SIGKILL)
"""


def answer(*cells, **noted):
    return Answer(cells=[IMPORTS, *cells], **noted)


def of(learner, *cells, name="p1e1_pairs", **noted):
    return Submission(learner=learner, answers={name: answer(*cells, **noted)})


def hand_in(folder, one):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{one.learner}.submission.json").write_text(one.model_dump_json())


def notebooks(folder, *cells):
    """A folder as a learner has it who knows nothing of `lab submit`."""
    folder.mkdir(parents=True)
    nb = build_student(source_of("p1e1_pairs"))
    next(c for c in nb.cells if c.metadata.get("tags") == ["answer"]).source = "\n".join(cells)
    nbformat.write(nb, folder / "p1e1_pairs.ipynb")
    (folder / "p1e2_encode.ipynb").write_text(text_of(build_student(source_of("p1e2_encode"))))


@pytest.fixture
def a_class(tmp_path):
    """Twelve folders: seven honest ones, three that cheat, two that crash."""
    folder = tmp_path / "handed in"
    for one in (
        of("ada", COUNT, MERGE, solved=True, tries=2, hints=1),
        of("ben", COUNT_ONCE, MERGE.replace("list(tokens)", "tokens[:]"), tries=4),
        of("cleo", COUNT, "%timeit 1\n" + MERGE.replace("while rest", "while len(rest)")),
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
        == "noted as solved; run again: pairs-counted-once; `merge` is the same as that of ada"
    )
    assert looks == {"ada": "`merge` is the same as that of hal"}
    assert "hal: its graders are not the course's" in out.replace("\n", " ")
    assert "gus: no file of `lab submit`, and no exercise notebook" in out
    assert (rows["ada"]["tries"], rows["ada"]["hints"]) == ("2", "1")


def test_answers_that_reach_for_their_grader():
    """Whoever comes after one is judged by the course's own."""
    attacks = {"patches": PATCHED, "forges": FORGED, "forks": FORKS, "writes": WRITES, "ends": ENDS_ALL}
    a_class = [of(learner, COUNT, merge) for learner, merge in attacks.items()]
    graded = grade([*a_class, of("nora", COUNT_ONCE, MERGE)], cores=1)
    came_out = {one.learner: (one.verdict.diagnosis, one.look_at[:1]) for one in graded}
    assert came_out == {
        "patches": ("changes-grader", ["changes the grader: exercises.judging.judge.same"]),
        "forges": ("writes-a-verdict", ["writes its own verdict"]),
        "forks": ("raises", []),
        "writes": ("", ["writes in the course's files: exercises/grading.py"]),
        "ends": ("ends-the-grading", []),
        "nora": ("pairs-counted-once", ["`merge` is the same as that of writes"]),
    }


def test_answers_that_change_what_judges_them():
    a_class = [
        of("ann", COUNT, NO_GRADER),
        of("bob", NO_CASES, name="p1e2_encode"),
        of("cy", COUNT, ENDS_THE_GROUP),
    ]
    so_far = []
    graded = grade(
        [*a_class, of("dee", OWN_FILE, COUNT, MERGE)], lambda found: so_far.append(len(found)), cores=1
    )
    ann, bob, cy, dee = graded
    assert ann.verdict.diagnosis == "changes-grader"
    assert ann.look_at == ["changes the grader: grade of p1e1_pairs"]
    assert not bob.solved and bob.verdict.diagnosis != "raises"
    assert cy.verdict.diagnosis == "ends-the-grading"
    assert dee.solved and dee.look_at == []  # a file of one's own is no offence
    assert so_far == [1, 2, 3, 4]


def test_trivial_answers_are_no_copies():
    stub = next(
        c for c in build_student(source_of("p1e1_pairs")).cells if c.metadata.get("tags") == ["answer"]
    )
    for cell in (stub.source, "def merge(tokens, pair, new_id):\n    return tokens\n"):
        assert copies.shapes_of("p1e1_pairs", [cell]) == {}
    assert list(copies.shapes_of("p1e1_pairs", [MERGE])) == ["merge"]


@pytest.mark.parametrize(
    ("cell", "python"),
    [
        ("%timeit f()\nx = 1\n", "pass\nx = 1\n"),
        ("%%time\nx = 1\n", "x = 1\n"),
        ("x = (7\n  % 4)\n", "x = (7\n  % 4)\n"),
        ("!ls\nx = (7\n  % 4)\n", "pass\nx = (7\n  % 4)\n"),
        ("files = !ls\n", "pass\n"),
        ("def f(:\n", "def f(:\n"),
    ],
)
def test_magics_are_taken_out_and_arithmetic_stays(cell, python):
    assert without_magic(cell) == python


@pytest.mark.parametrize("cell", ["(" * 100_000, "-" * 100_000 + "1", "1" + "+1" * 100_000, "\0"])
def test_what_no_parser_can_read_ends_nothing(cell):
    assert copies.shapes_of("p1e1_pairs", [cell]) == {}


@pytest.mark.proof
@pytest.mark.parametrize("merge", [EATS, LOOPS_IN_C, PRINTS], ids=["eats", "loops in C", "prints"])
def test_an_answer_that_never_ends(merge, capsys):
    mallory, nora = grade([of("mallory", COUNT, merge), of("nora", COUNT, MERGE)], cores=1)
    assert mallory.verdict.diagnosis == "endless" and nora.solved
    assert "xxx" not in capsys.readouterr().out


def test_the_table_fits_into_60_columns(capsys):
    name = "Wolfeschlegelsteinhausenbergerdorff " * 2
    one = Graded(name, "p1e1_pairs", Verdict("not yet", "merge-overlaps"), True, 12, 4, "", "", ["x " * 80])
    report.show(Console(width=60), [of(name, tries=12)], [one])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 60 and "0 of 1" in out and "merge-overlaps" in out


def test_a_table_for_a_spreadsheet_holds_no_formula():
    one = Graded("=cmd()", "p1e1_pairs", Verdict("correct"), True, 1, 0, "", "")
    assert "'=cmd()" in report.as_csv([one])


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_all_solutions_pass_and_are_known_as_solutions():
    cells = {name: cells_of_solution(name) for name in all_names()}
    graded = grade([Submission(learner="sol", answers={n: Answer(cells=c) for n, c in cells.items()})])
    assert [one for one in graded if not one.solved] == []
    told = {one.exercise for one in graded if any("is the solution" in look for look in one.look_at)}
    assert told == {name for name in all_names() if copies.shapes_of(name, cells[name])} and len(told) > 15


def cells_of_solution(name):
    return cells_of_answer(build_solution(source_of(name)))


# ------------------------------------------------------------------ handing in


def test_a_submission_holds_answers_notes_and_versions(tmp_path, capsys):
    books = tmp_path / "exercises"
    notebooks(books, COUNT, MERGE)
    progress.note_check("p1e1_pairs", Verdict("not yet", "merge-overlaps"))
    progress.note_check("p1e1_pairs", Verdict("correct"))
    progress.note_hint("p1e1_pairs", 2)
    written, path = submit("Ada Lovelace", books)
    assert path.name == "ada-lovelace.submission.json"
    read = Submission.model_validate_json(path.read_text())
    assert read == written and list(read.answers) == ["p1e1_pairs"]  # nobody wrote in p1e2
    one = read.answers["p1e1_pairs"]
    assert (one.solved, one.tries, one.hints) == (True, 2, 2) and one.first_try <= one.solved_at
    assert COUNT.strip() in one.cells[1] and not any('check("' in cell for cell in one.cells)
    assert read.signed.startswith("by nothing") and read.versions["torch"] and read.graders == fingerprint()


CHECKED = 'check("p1e1_pairs", count_pairs, merge)'


@pytest.mark.parametrize(
    ("cells", "kept"),
    [
        ([f"def merge(): ...\n{CHECKED}"], ["def merge(): ...\npass"]),
        (['def merge():\n    """First check (left, right)."""'], None),
        (["def check(a, b): ...\ndef merge(): ...\ncheck(1, 2)"], None),
        ([CHECKED, "def merge(): ...  # é"], ["def merge(): ...  # é"]),
        (["é = 1; " + CHECKED + "; b = 2"], ["é = 1; pass; b = 2"]),
        (["try:\n    " + CHECKED + "\nexcept Exception: ...\nx = 1"], ["pass\nx = 1"]),
        (["def merge(\n" + CHECKED + "\n"], None),
    ],
)
def test_an_answer_is_found_wherever_it_stands(cells, kept):
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    assert cells_of_answer(nb) == (cells if kept is None else kept)


def test_one_answer_is_told_as_one(tmp_path, capsys, monkeypatch):
    notebooks(tmp_path / "notebooks" / "exercises", COUNT, MERGE)
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    assert commands.main(["submit", "Ada"]) == 0
    assert "1 answer, 0 noted as solved" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", "!?", "x" * 101])
def test_a_name_is_needed(tmp_path, name):
    with pytest.raises(LabError, match="is no name"):
        submit(name, tmp_path)


def test_nothing_to_hand_in(tmp_path):
    with pytest.raises(LabError, match="no answer yet"):
        submit("Ada", tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not a file of `lab submit`"),
        ("[]", "not a file of `lab submit`"),
        ('{"learner": "x", "answers": {"p1e1_pairs": {"cells": 3}}}', "answers.p1e1_pairs.cells"),
        ('{"learner": "x", "answers": {"p1e1_pairs": {"cells": [], "tries": -1}}}', "tries"),
    ],
)
def test_what_cannot_be_read_costs_a_line(tmp_path, content, says):
    (tmp_path / "x.json").write_text(content)
    (line,) = submissions_in(tmp_path)
    assert line.startswith("x.json: not a file of `lab submit`") and says in line


def test_an_empty_folder_and_none(tmp_path, capsys):
    assert commands.main(["grade", str(tmp_path)]) == 2
    assert "nothing was handed in" in capsys.readouterr().err
    assert commands.main(["grade", str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_progress_for_a_program(capsys):
    progress.note_check("p1e1_pairs", Verdict("correct"))
    assert print_progress() == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["exercises"]) == all_names()
    assert told["exercises"]["p1e1_pairs"]["solved"] and not told["exercises"]["p1e2_encode"]["solved"]
    assert told["predictions"] == {"points": 0, "most": 0}


def test_progress_says_how_to_hand_in(capsys):
    console = Console(width=80)
    assert show_progress(console) == 0
    assert "lab submit" not in capsys.readouterr().out  # there is nothing yet
    progress.note_check("p1e1_pairs", Verdict("correct"))
    show_progress(console)
    assert "lab submit 'Your Name'" in capsys.readouterr().out


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
    assert lab(["progress", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["predictions"]
    hand_in(tmp_path / "class", of("ada", "def count_pairs(tokens)"))
    monkeypatch.chdir(tmp_path)  # a folder is meant from here
    assert lab(["grade", "class"]) == 0
    assert "0 of 1" in capfd.readouterr().out and (tmp_path / "class" / "grades.csv").is_file()
    for words in (["grade", "none"], ["submit", "?"]):
        assert lab(words) == 2
        out, err = capfd.readouterr()
        assert out == "" and err.count("\n") == 1 and err.startswith("error: "), err
