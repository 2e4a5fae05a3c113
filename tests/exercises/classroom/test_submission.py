"""What a learner hands in, and how it is read."""

import os

import pytest

from exercises.classroom.submission import Submission, Unread, submissions_in, submit
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
    assert COUNT.strip() in one.cells[1] and not any("learn_merges" in cell for cell in one.cells)


@pytest.mark.parametrize(
    ("name", "says"),
    [("", "is no name"), ("!?", "is no name"), ("x" * 101, "is no name"), ("Ada", "no answer yet")],
)
def test_what_cannot_be_handed_in(tmp_path, name, says):
    with pytest.raises(LabError, match=says):
        submit(name, tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not a file of `lab submit`"),
        ("[]", "not a file of `lab submit`"),
        ('{"learner": "x", "answers": {"p1e1_pairs": {"cells": 3}}}', "answers.p1e1_pairs.cells"),
        ('{"learner": "x", "answers": {"p1e1_pairs": {"cells": [], "tries": -1}}}', "tries"),
        (" " * 2_100_000, "larger than 2 MB"),
    ],
)
def test_what_cannot_be_read_costs_a_line(tmp_path, content, says):
    (tmp_path / "x.submission.json").write_text(content)
    (found,) = submissions_in(tmp_path)
    assert isinstance(found, Unread) and found.name == "x.submission.json" and says in found.why


def test_the_name_of_the_file_or_folder_counts_and_of_several_files_the_newest(tmp_path):
    for number, (name, cell) in enumerate((("zoe", MERGE), ("ada", COUNT_ONCE), ("mia", COUNT))):
        hand_in(tmp_path / "ada" / "monday", of(name, cell))
        os.utime(tmp_path / "ada" / "monday" / f"{name}.submission.json", (1e9 + number, 1e9 + number))
    hand_in(tmp_path, of("ada", COUNT_ONCE), "mallory")
    hand_in(tmp_path, of("ada", MERGE), "ada")  # beside the folder, and older
    for name in ("ada", "mallory"):
        os.utime(tmp_path / f"{name}.submission.json", (1e9, 1e9))
    for name in ("mallory", "grades.csv", ".hidden", "ben.zip", "p1e1_pairs.ipynb"):
        (tmp_path / name).write_text("")
    ada, *unread, mallory = sorted(submissions_in(tmp_path), key=lambda found: getattr(found, "learner", "b"))
    assert (ada.learner, mallory.learner) == ("ada", "mallory") and COUNT in ada.answers["p1e1_pairs"].cells
    assert [one.name for one in unread] == ["ben.zip", "p1e1_pairs.ipynb"]
    assert {one.why for one in unread} == {"not a file of `lab submit`, nor a folder with one"}
