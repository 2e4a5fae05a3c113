"""What a learner hands in, and how it is read."""

import os

import pytest

from exercises.classroom.submission import (
    Submission,
    Unread,
    graders_fingerprint,
    submissions_in,
    submit,
)
from exercises.judging import progress
from exercises.judging.verdict import Verdict
from labkit.errors import LabError
from tests.exercises.classroom.handed_in import COUNT, COUNT_ONCE, MERGE, hand_in, notebooks, of


def test_a_submission_holds_answers_and_notes(tmp_path):
    books = tmp_path / "exercises"
    notebooks(books, COUNT, MERGE)
    progress.note_check("p1e1_pairs", Verdict("not yet", "merge-overlaps"))
    progress.note_check("p1e1_pairs", Verdict("correct"))
    progress.note_hint("p1e1_pairs", 2)
    written, path = submit("Ada Lovelace", books)
    assert path.name == "ada-lovelace.submission.json"
    read = Submission.model_validate_json(path.read_text())
    assert read == written and list(read.answers) == ["p1e1_pairs"]  # p1e2 is as it was given out
    one = read.answers["p1e1_pairs"]
    assert (one.solved, one.tries, one.hints) == (True, 2, 2) and one.first_try <= one.solved_at
    assert COUNT.strip() in one.cells[1] and not any(
        "count_pairs_in_the_tokenizer" in cell for cell in one.cells
    )
    assert read.graders == graders_fingerprint()


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
    (found,) = submissions_in(tmp_path)
    assert isinstance(found, Unread) and found.name == "x.json"
    assert found.why.startswith("not a file of `lab submit`") and says in found.why


def test_of_several_files_the_newest_counts_and_nothing_is_passed_over(tmp_path):
    for number, name in enumerate(("zoe", "ada", "mia")):  # zoe's is the oldest
        hand_in(tmp_path / "ada", of(name, COUNT))
        os.utime(tmp_path / "ada" / f"{name}.submission.json", (1e9 + number, 1e9 + number))
    for name in ("grades.csv", ".hidden", "ben.zip", "p1e1_pairs.ipynb"):
        (tmp_path / name).write_text("")
    found = list(submissions_in(tmp_path))
    names = {f.name if isinstance(f, Unread) else f.learner: getattr(f, "why", "") for f in found}
    assert set(names) == {"mia", "ben.zip", "p1e1_pairs.ipynb"}
    assert "into a folder of the learner's name" in names["ben.zip"] == names["p1e1_pairs.ipynb"]


def test_of_two_files_of_a_learner_the_newest_counts_and_that_is_told(tmp_path):
    for number, (name, cell) in enumerate({"bruno (1)": COUNT, "bruno": COUNT_ONCE}.items()):
        path = tmp_path / f"{name}.submission.json"
        path.write_text(of("Bruno", cell).model_dump_json())
        os.utime(path, (1e9 - number, 1e9 - number))
    older, kept = sorted(submissions_in(tmp_path), key=lambda found: isinstance(found, Submission))
    assert COUNT in kept.answers["p1e1_pairs"].cells
    assert older.replaced and older.name == "bruno.submission.json"
    assert older.why.startswith("bruno (1).submission.json is newer")


def test_notebooks_are_found_wherever_they_lie(tmp_path):
    notebooks(tmp_path / "ada" / "monday", COUNT_ONCE)
    notebooks(tmp_path / "ada" / "tuesday", COUNT, MERGE)
    (tmp_path / "ada" / "monday" / "p1e2_encode.ipynb").rename(tmp_path / "ada" / "p1e2_encode.ipynb")
    os.utime(tmp_path / "ada" / "monday" / "p1e1_pairs.ipynb", (1e9, 1e9))
    (found,) = submissions_in(tmp_path)
    assert list(found.answers) == ["p1e1_pairs"]  # p1e2 is as it was given out
    assert found.answers["p1e1_pairs"].tries is None
    assert COUNT.strip() in found.answers["p1e1_pairs"].cells[1]


def test_a_learner_does_not_hand_in_for_another(tmp_path):
    hand_in(tmp_path, of("Ada", COUNT, MERGE))
    hand_in(tmp_path, of("Ada", COUNT_ONCE), "mallory")
    assert {found.learner for found in submissions_in(tmp_path)} == {"Ada", "Ada, in mallory.submission.json"}
