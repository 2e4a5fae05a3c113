"""Guesses in the companion notebooks: their points, their boxes, and what `lab progress` finds of them."""

import json
import re

import pytest

from exercises.publishing.commands import predicted_points
from labkit.claims import measured_claims
from notebooks.widgets import Guesses
from notebooks.widgets import questions as questions_module
from notebooks.widgets.questions import Question


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("INFERENCE_LAB_OUTPUTS", str(tmp_path))
    monkeypatch.setitem(
        questions_module.QUESTIONS, "phase0", {"cats": Question("Cats on {where}", "They sleep.", "cats")}
    )
    return tmp_path / "reports" / "phase0" / "notebook.json"


@pytest.mark.parametrize(
    "guess, measured, points",
    [("7", 6, 2), ([40, 40, 20], [39, 39, 22], 3), ((1, 2), [1, 2], 3), ("yes", True, 3)],
)
def test_points(guess, measured, points):
    assert Guesses().reveal("how many", guess, measured=measured).points == points


def test_no_guess_is_no_point_and_no_file(folder):
    guesses = Guesses("phase0")
    for nothing in (..., None):
        shown = guesses.reveal("cats", nothing, measured=6, where="the mat")
        assert shown.points is None
        assert "<details>" in shown._repr_html_()
    assert repr(guesses) == "0 of 1 questions guessed, 0 of 0 points"
    assert not folder.exists()


def test_a_guess_is_found_by_lab_progress(folder):
    Guesses("phase0").reveal("cats", 8, measured=6, where="the mat")
    assert predicted_points() == (2, 3, 1)
    again = Guesses("phase0")  # another day
    again.reveal("cats", 6, measured=6, where="the mat")  # the last guess counts
    again.reveal("another question", 100, measured=6)
    assert predicted_points() == (3, 6, 1)
    claims, problems = measured_claims()
    assert not claims.keys() - {"notebook"} and not problems  # and the ledger of claims can read it
    folder.write_text("{half a fi")
    again.reveal("cats", 6, measured=6, where="the mat")
    assert predicted_points() == (3, 3, 1)
    (kept,) = json.loads(folder.read_text())["predictions"]
    assert kept["question"] == "Cats on the mat"
    assert kept["unit"] == "cats"


def test_what_cannot_be_written_costs_the_note_only(folder, capsys):
    folder.parent.parent.mkdir(parents=True)
    folder.parent.write_text("a file where the folder should be")
    assert Guesses("phase0").reveal("cats", 6, measured=6, where="the mat").points == 3
    assert "cannot be noted" in capsys.readouterr().out


def test_a_guess_of_the_wrong_kind_is_told_in_a_line():
    for guess, measured, says in (
        ("many", 6, "'many' is not a number"),
        ([1, 2, 3], 6, "give one value; [1, 2, 3] is a list"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)) as caught:
            Guesses().reveal("how many", guess, measured=measured)
        (line,) = caught.value._render_traceback_()
        assert line.startswith("error: ") and says in line and "\n" not in line


def test_a_guess_is_shown_as_text_not_as_a_page():
    shown = Guesses().reveal("<b>who</b>", "<script>", measured="a & b")
    assert "<script>" not in shown._repr_html_()
    assert "<b>who" not in shown._repr_html_()
