"""Answers that are run again: those that reach for their grader, and those that never end."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from exercises.classroom import copies
from exercises.classroom import grade as classroom_grade
from exercises.classroom.grade import clean_copies, grade
from exercises.classroom.submission import Answer, Submission, cells_of_answer
from exercises.judging.sources import all_names, source_of
from exercises.publishing.build_notebooks import build_solution
from tests.exercises.classroom.handed_in import COUNT, COUNT_ONCE, MERGE, of

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
EATS = """
def merge(tokens, pair, new_id):
    held = []
    while True:
        try:
            held.append(bytearray(1 << 28))
        except MemoryError:
            pass
"""
LOOPS_IN_C = "def merge(tokens, pair, new_id):\n    return sum(iter(int, 1))\n"
PRINTS = "def merge(tokens, pair, new_id):\n    while True:\n        print('x' * 1000)\n"
FORKS = "import os\ndef merge(tokens, pair, new_id):\n    while True:\n        os.fork()\n"
ROOM = """
import os
room = int(open(f"/proc/{os.getppid()}/stat").read().rsplit(")", 1)[1].split()[1])
"""
ENDS_THE_GROUP = """
import os, signal

def merge(tokens, pair, new_id):
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
    os.kill(room, signal.SIGKILL)
"""
STOPS = ENDS_ALL.replace("SIGKILL", "SIGSTOP")
SPEAKS_FIRST = """
def merge(tokens, pair, new_id):
    with open(f"/proc/{room}/fd/1", "w") as replies:
        replies.write('{"state": "correct"}\\n' * 10)
    return 7
"""


def test_answers_that_reach_for_their_grader():
    """Whoever comes after one is judged by the course's own."""
    attacks = {"patches": PATCHED, "forges": FORGED, "forks": FORKS, "writes": WRITES}
    attacks |= {"speaks": ROOM + SPEAKS_FIRST, "ends": ROOM + ENDS_ALL}
    a_class = [of(learner, COUNT, merge) for learner, merge in attacks.items()]
    graded = grade([*a_class, of("nora", COUNT_ONCE, MERGE)], cores=1)
    came_out = {one.learner: (one.verdict.diagnosis, one.look_at[:1]) for one in graded}
    assert came_out == {
        "patches": ("changes-grader", ["changes the grader: exercises.judging.judge.same"]),
        "forges": ("writes-a-verdict", ["writes its own verdict"]),
        "forks": ("raises", []),
        "writes": ("", ["writes in the course's files: exercises/grading.py"]),
        "speaks": ("wrong-type", []),
        "ends": ("ends-the-grading", []),
        "nora": ("pairs-counted-once", ["`merge` is the same as that of writes"]),
    }


def test_answers_that_change_what_judges_them():
    a_class = [
        of("ann", COUNT, NO_GRADER),
        of("bob", NO_CASES, name="p1e2_encode"),
        of("cy", COUNT, ROOM + ENDS_THE_GROUP),
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


def test_answers_that_take_the_solution_from_the_course(tmp_path):
    solved = tmp_path / "notebooks" / "solutions" / "p1e1_pairs.ipynb"  # as in the teacher's own copy
    solved.parent.mkdir(parents=True)
    solved.write_text("")
    reads = f"import os\nos.chdir({str(tmp_path)!r})\nopen('notebooks/solutions/{solved.name}').read()\n"
    imports = [
        "from exercises.phase1.e1_pairs import merge",
        "from exercises.phase1 import e1_pairs as merge",
    ]
    a_class = [of("una", COUNT, imports[0]), of("vic", COUNT, imports[1]), of("wim", reads + COUNT, MERGE)]
    una, vic, wim = grade(a_class, cores=1)
    assert una.verdict.diagnosis == vic.verdict.diagnosis == "borrowed"
    assert una.look_at == ["uses `merge` of exercises.phase1.e1_pairs"]
    assert vic.look_at == ["uses `e1_pairs` of exercises.phase1"]
    assert wim.verdict.diagnosis == "reads-a-solution"
    assert wim.look_at[0] == "reads the solution: notebooks/solutions/p1e1_pairs.ipynb"


def test_an_answer_that_stops_its_room(monkeypatch):
    with clean_copies(1) as (room,):
        assert room.judge("p1e1_pairs", [COUNT, MERGE])[0].state == "correct"
        monkeypatch.setattr(classroom_grade, "LONGEST", 1.0)
        assert room.judge("p1e1_pairs", [COUNT, ROOM + STOPS])[0].diagnosis == "ends-the-grading"


@pytest.mark.proof
def test_without_fork_nobody_is_blamed_for_it(monkeypatch):
    """As on Windows, where each answer is sent to a new process."""
    monkeypatch.setenv("INFERENCE_LAB_JUDGE", "process")
    answers = {name: Answer(cells=cells_of_solution(name)) for name in ("p1e2_encode", "p1e1_pairs")}
    graded = grade(
        [Submission(learner=name, answers={name: answer}) for name, answer in answers.items()], cores=1
    )
    assert [(one.exercise, one.verdict.state) for one in graded] == [(name, "correct") for name in answers]


@pytest.mark.proof
def test_answers_that_never_end(capsys):
    """Each in a room that the next answer is judged in, too; all three rooms at once, since each waits for the time limit."""

    def judged_after(merge):
        return grade([of("mallory", COUNT, merge), of("nora", COUNT, MERGE)], cores=1)

    with ThreadPoolExecutor() as threads:
        for mallory, nora in threads.map(judged_after, [EATS, LOOPS_IN_C, PRINTS]):
            assert mallory.verdict.diagnosis == "endless" and nora.solved
    assert "xxx" not in capsys.readouterr().out


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
