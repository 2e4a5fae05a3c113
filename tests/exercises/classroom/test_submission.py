"""What a learner hands in, and how it is read."""

import os
import shutil

import pytest

from exercises.classroom import commands
from exercises.classroom.submission import (
    Submission,
    Unread,
    cells_of_answer,
    is_copied,
    submissions_in,
    submit,
)
from exercises.judging import progress
from exercises.judging.sources import all_sources, name_of, source_of
from exercises.judging.verdict import Verdict
from exercises.publishing.build_notebooks import SOLUTION, build_solution, build_student, fingerprint
from exercises.publishing.commands import level_of
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
    assert (one.solved, one.tries, one.hints) == (True, 2, 2)
    assert one.edition == fingerprint(build_student(source_of("p1e1_pairs")))
    assert COUNT.strip() in one.cells[1] and not any("learn_merges" in cell for cell in one.cells)


def test_what_is_not_in_the_file_is_named_and_so_is_a_copied_solution(tmp_path, monkeypatch, capsys):
    books = tmp_path / "notebooks" / "exercises"
    notebooks(books, COUNT, MERGE)
    for name in ("p1e2_encode-ada", "p1e1_pairs.bak-1"):
        (books / f"{name}.ipynb").write_text("")
    progress.note_check("p1e2_encode", Verdict("correct"))
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    assert commands.main(["submit", "Ada"]) == 0
    out = capsys.readouterr().out
    assert "p1e2_encode-ada.ipynb is left out" in out and ".bak-" not in out and "solution" not in out
    assert "1 answer, 0 noted as solved" in out and "p1e2_encode is noted as solved, and no answer" in out
    shutil.copy(SOLUTION / "p1e1_pairs.ipynb", books)
    assert commands.main(["submit", "Ada"]) == 0
    assert "p1e1_pairs is the solution, copied" in capsys.readouterr().out


def test_a_copied_solution_is_known_by_its_statements():
    cells = cells_of_answer(build_solution(source_of("p1e1_pairs")))
    stubs = cells_of_answer(build_student(source_of("p1e1_pairs")))
    pasted = [*stubs, "\n\n".join(cells).replace('"""', "# ") + "\n"]
    assert is_copied("p1e1_pairs", [*pasted, 'hint("p1e1_pairs")', "", "%time 1", "(" * 10**5])
    assert not is_copied("p1e1_pairs", [cell.replace("merged", "out") for cell in cells])
    core = [name_of(source) for source in all_sources() if level_of(source) == "core"]
    copies = {name: cells_of_answer(build_solution(source_of(name))) for name in core}
    short = {name.partition("_")[0] for name, own in copies.items() if not is_copied(name, own)}
    debugging = cells_of_answer(
        build_solution(source_of("p3d1_freed_and_read"))
    )  # all right answers are alike
    assert not is_copied("p3d1_freed_and_read", debugging) and short == {"p2e1", "p2e2", "p3e2"}, (
        "docs/TEACHING.md says so"
    )


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
    again = of("ada", MERGE)  # of another edition
    again.answers["p1e99_gone"] = again.answers["p1e1_pairs"]
    (tmp_path / "mallory.submission (1).json").write_text(again.model_dump_json())  # a second download
    hand_in(tmp_path, of("ada", MERGE), "ada")  # beside the folder, and older
    for name in ("ada", "mallory"):
        os.utime(tmp_path / f"{name}.submission.json", (1e9, 1e9))
    for name in ("mallory", "grades.csv", ".hidden", "ben.zip", "p1e1_pairs.ipynb"):
        (tmp_path / name).write_text("")
    ada, *unread, mallory = sorted(submissions_in(tmp_path), key=lambda found: getattr(found, "learner", "b"))
    assert (ada.learner, mallory.learner) == ("ada", "mallory")
    assert COUNT in ada.answers["p1e1_pairs"].cells and MERGE in mallory.answers["p1e1_pairs"].cells
    other = "not a file of `lab submit`, nor a folder with one"
    assert [(one.name, one.why.removeprefix("older, and not graded: ")) for one in unread] == [
        ("ada", "ada.submission.json, ada.submission.json, zoe.submission.json"),
        ("ben.zip", other),
        ("mallory", "another edition of the course: this one has no p1e99_gone"),
        ("mallory", "mallory.submission.json"),
        ("p1e1_pairs.ipynb", other),
    ]
