"""`lab grade`: a class with hostile hand-ins, what the teacher reads, and what is left behind."""

import csv
import signal
import subprocess
import sys
import tempfile

import psutil
import pytest
from rich.console import Console

from exercises.classroom import commands, report, room
from exercises.classroom.grade import Graded, grade, note_alike
from exercises.classroom.submission import Answer, Submission, cells_of_answer
from exercises.judging.sources import all_names, source_of
from exercises.judging.verdict import Verdict
from exercises.publishing.build_notebooks import build_solution, build_student, fingerprint
from labkit.command import main as lab
from labkit.paths import ROOT
from tests.exercises.classroom import hostile
from tests.exercises.classroom.handed_in import COUNT, COUNT_ONCE, MERGE, hand_in, of

NEVER_CHECKED = (
    'hint("p1e1_pairs")\ndef merge(*args):\n    return []\ncheck("p1e1_pairs", count_pairs, merge)'
)
THIS = fingerprint(build_student(source_of("p1e1_pairs")))
OWN_FILE = "import torch\nfrom pathlib import Path\nPath('my_example.json').write_text('[1, 2]')"


@pytest.fixture
def walls():
    if not room.has_walls():
        pytest.skip("needs Linux namespaces")


@pytest.fixture(autouse=True)
def agrees(monkeypatch):
    """Where there are no walls, the person who grades agrees."""
    monkeypatch.setattr("builtins.input", lambda: "yes")


def table(folder, name="grades.csv"):
    with (folder / name).open(encoding="utf-8-sig") as file:
        return {row["learner"]: row for row in csv.DictReader(file)}


CLASS = {  # by learner: cells, what was noted, the mistake or the state, what to look at
    "ada": ((COUNT, MERGE), {"solved": True, "tries": 2, "hints": 1}, "correct", ""),
    "ben": (
        (COUNT_ONCE, MERGE),
        {"tries": 4, "edition": THIS},
        "pairs-counted-once",
        "the same answer as gus",
    ),
    "cleo": (
        (OWN_FILE, "%%time\n" + COUNT, "%timeit 1\n!ls\n" + NEVER_CHECKED, MERGE.replace("out", "o")),
        {},
        "correct",
        "",
    ),
    "dora": (("1 / 0", COUNT, MERGE.replace("first", "one")), {"solved": True}, "correct", ""),
    "emil": (("def count_pairs(tokens)\n    return {}",), {}, "raises", ""),
    "fred": ((COUNT, MERGE.replace("list(tokens)", "tokens")), {}, "changes-its-input", ""),
    "gus": (
        (COUNT_ONCE, f"# all by myself\n{MERGE}"),
        {"edition": "old"},
        "pairs-counted-once",
        "another edition of this exercise; the same answer as ben",
    ),
    "ivy": (
        ("from phase1_tokens_embeddings.tokens.bpe import merge_pair as merge", COUNT),
        {"solved": True},
        "borrowed",
        "noted as solved, but graded again: borrowed",
    ),
    "una": (("from exercises.judging.comparing import same as merge", COUNT), {}, "borrowed", ""),
}


def test_a_class(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    for learner, (cells, noted, *_) in CLASS.items():
        hand_in(tmp_path / learner, of(learner, *cells, **noted))
    copied = of("kim")
    copied.answers["p1e1_pairs"].cells = cells_of_answer(build_solution(source_of("p1e1_pairs")))
    hand_in(tmp_path, copied)
    (tmp_path / "lea").mkdir()
    assert commands.main(["grade", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "Traceback" not in out
    rows = table(tmp_path)
    assert rows["lea"]["state"] == "not read" and "nor a folder with one" in rows.pop("lea")["what was said"]
    found = {learner: (row["mistake"] or row["state"], row["look at"]) for learner, row in rows.items()}
    assert found.pop("kim") == ("correct", "is the solution, copied")
    assert [rows[learner]["points"] for learner in ("ada", "kim", "ben")] == ["3", "0", "0"]
    assert found == {learner: (came_out, look) for learner, (_, _, came_out, look) in CLASS.items()}
    assert list(rows) == sorted(rows) and rows["ben"]["what was said"].endswith(".")
    assert (rows["ada"]["noted as solved"], rows["ada"]["tries"], rows["ada"]["hints"]) == ("yes", "2", "1")


# ------------------------------------------------------------------ hostile hand-ins


@pytest.mark.usefixtures("walls")
@pytest.mark.proof
@pytest.mark.timeout(900)
def test_forty_hostile_hand_ins_among_honest_ones(tmp_path):
    """They change no other grade. Each has one line, and none is solved."""
    assert len(hostile.BODIES) + len(hostile.FILES) >= 40
    honest = {"right": (COUNT, MERGE), "once": (COUNT_ONCE, MERGE), "empty": ("pass",)}
    neighbours = ("az ", "kz ", "pz ")  # rooms open in the order of names, two side by side
    for kind, cells in honest.items():
        for neighbour in neighbours:
            hand_in(tmp_path, of(f"{neighbour}{kind}", *cells))
    for kind, body in hostile.BODIES.items():
        hand_in(tmp_path, of(kind, COUNT, f"def merge(tokens, pair, new_id):\n    {body}\n"))
    for make in hostile.FILES.values():
        make(tmp_path)
    assert commands.main(["grade", str(tmp_path)]) == 0
    rows = table(tmp_path)
    assert len(rows) == 9 + len(hostile.BODIES) + len(hostile.FILES)
    states = {"right": "correct", "once": "not yet", "empty": "not attempted"}
    for kind, state in states.items():
        assert {rows[f"{neighbour}{kind}"]["state"] for neighbour in neighbours} == {state}
    assert {rows[kind]["state"] for kind in hostile.BODIES} <= {"not yet", "not attempted"}
    assert not any("\x1b" in text for row in rows.values() for text in row.values())
    for kind in ("patches the judge", "patches the comparison", "claims to be correct"):
        assert "claims to be correct, and its results are not" in rows[kind]["look at"], rows[kind]
    for kind in ("plants bytecode", "writes in the course", "forks", "fork_exec", "calls out"):
        assert rows[kind]["mistake"] == "raises", rows[kind]


@pytest.mark.usefixtures("walls")
def test_what_an_answer_sees(monkeypatch):
    looks = f"""
import os
seen = [os.listdir("/"), os.listdir("/scratch"), os.environ, os.path.exists({str(ROOT / "exercises")!r}), os.listdir("/proc")]
open("left", "w")
raise ValueError(f"{{sorted(seen[0])}} {{seen[1]}} {{'SECRET' in seen[2]}} {{seen[3]}} {{sum(map(str.isdigit, seen[4]))}}")
"""
    monkeypatch.setenv("SECRET", "1")
    twice = of("ada", looks)
    twice.answers["p1e2_encode"] = Answer(cells=[*twice.answers["p1e1_pairs"].cells])
    for one in grade([twice], True, 1):  # two processes: the room and the answer
        assert "home" not in one.verdict.says and one.verdict.says.endswith("[] False False 2"), one.verdict


def test_without_namespaces_the_teacher_is_asked(tmp_path, tmp_path_factory, capsys, monkeypatch):
    rooms = tmp_path_factory.mktemp("rooms")
    monkeypatch.setattr(tempfile, "tempdir", str(rooms))
    monkeypatch.setattr(room, "NAMESPACES", ["false"])
    ada = of("ada", COUNT, MERGE)
    ada.answers["p1e2_encode"] = Answer(cells=[])
    hand_in(tmp_path, ada)
    monkeypatch.setattr("builtins.input", lambda: "no")
    assert commands.main(["grade", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert "would run with your rights" in " ".join(out.split()) and err.startswith("error: nothing was run")
    monkeypatch.setattr("builtins.input", lambda: "yes")
    assert commands.main(["grade", str(tmp_path), "1.1"]) == 0  # and not 1.2, to which there is no answer
    assert table(tmp_path, "grades-only.csv")["ada"]["state"] == "correct"
    assert not (tmp_path / "grades.csv").exists() and not list(rooms.iterdir())


@pytest.mark.proof
@pytest.mark.usefixtures("walls")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_when_it_is_ended_grades_stay_and_nothing_else(tmp_path, number):
    note = "open('/proc/self/comm', 'w').write('lab-left-over')"
    hand_in(tmp_path, of("ada", COUNT_ONCE, MERGE))
    hand_in(tmp_path, of("zoe", COUNT, f"{note}\ndef merge(*args):\n    while True: pass"))
    grading = subprocess.Popen(
        [sys.executable, "-m", "exercises.classroom.commands", "grade", str(tmp_path)], cwd=ROOT
    )
    # Pytest's own time limit ends these loops.
    while not left_over() or not (tmp_path / "grades.csv").exists():
        assert grading.poll() is None
    grading.send_signal(number)
    grading.wait()
    while left_over():
        pass
    assert {learner: row["mistake"] for learner, row in table(tmp_path).items()} == {
        "ada": "pairs-counted-once"
    }


def left_over():
    return [one for one in psutil.process_iter(["name"]) if one.info["name"] == "lab-left-over"]


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_all_solutions_pass_and_are_known_as_solutions():
    answers = {name: Answer(cells=cells_of_answer(build_solution(source_of(name)))) for name in all_names()}
    halves = [dict(list(answers.items())[half::2]) for half in (0, 1)]
    submissions = [Submission(learner="sol", answers=half) for half in halves]
    graded = list(grade(submissions, room.has_walls(), 2))
    assert len(graded) == len(answers) and [one for one in graded if not one.solved] == []
    assert {why for one in graded for why in one.look_at} == {"is the solution, copied"}


# ------------------------------------------------------------------ commands and tables


def test_lab_passes_it_on(capfd, tmp_path, monkeypatch):
    (tmp_path / "class").mkdir()
    (tmp_path / "mine.ipynb").write_text("{")
    monkeypatch.chdir(tmp_path)  # a folder is meant from here
    for words, says in (
        (["grade", "class"], f"nothing was handed in: no file of `lab submit` in {tmp_path / 'class'}"),
        (["grade", "x"], "x is not a folder"),
        (["grade", "class", "--only", "9.9"], "no exercise is called '9.9'"),
        (["submit", "?"], "'?' is no name"),
        (["submit", "x" * 101], f"'{'x' * 100}' is no name"),
        (["check", "mine.ipynb"], f"{tmp_path}/mine.ipynb is not a notebook"),
    ):
        assert lab(words) == 2
        out, err = capfd.readouterr()
        assert out == "" and err.count("\n") == 1 and err.startswith(f"error: {says}"), err


def test_the_table_compares_the_core_or_the_chosen_and_counts_what_was_attempted(capsys):
    states = {"p1e1_pairs": "correct", "p1e2_encode": "correct", "p1e3_streaming": "not attempted"}
    graded = [Graded("ada", name, Answer(cells=[]), Verdict(state)) for name, state in states.items()]
    for only, says in ((set(), "1 of 9 2 of 2"), ({"p1e2_encode", "p2e0_tensors"}, "1 of 2 2 of 2")):
        report.show(Console(width=80), [of("ada")], graded, only)
        assert says in " ".join(capsys.readouterr().out.split())


def test_a_table_for_a_spreadsheet_holds_no_formula_and_names_all_with_the_same_answer(capsys):
    answer, verdict = Answer(cells=[COUNT, MERGE]), Verdict("correct", says="\ud800")
    graded = [Graded(learner, "p1e1_pairs", answer, verdict) for learner in ("=cmd()", "ada", "x" * 200)]
    note_alike(graded)
    report.show(Console(width=400), [], graded[:1], set())
    assert "the same answer as ada, ..." in capsys.readouterr().out
    first = report.as_csv(graded, []).splitlines()[1]
    assert "'=cmd()" in first and "the same answer as ada, xxx" in first
