"""The attacker of the graders finds what a careless grader takes, and only that."""

import ast
from types import SimpleNamespace

import pytest

from exercises.judging.verdict import Exercise, NotYet
from tests.fuzzing import answers
from tests.fuzzing.answers import right_answers, run

BANK = """
def clamp(x, low, high):
    if x < low:
        return low
    return min(x, high)

def never_called(x):
    return x + 1

RIGHT = [clamp]
WRONG = {"nothing": never_called(1)}
"""


def grade_by(*cases):
    def grade(clamp):
        for args, expected in cases:
            if clamp(*args) != expected:
                raise NotYet("wrong")

    return grade


CAREFUL = grade_by(((2, 1, 3), 2), ((0, 1, 3), 1), ((4, 1, 3), 3))
CARELESS = grade_by(((2, 1, 3), 2), ((4, 1, 3), 3))  # nothing below the limits


@pytest.fixture
def attacked(monkeypatch, tmp_path):
    """The findings of an attack on a grader."""
    (tmp_path / "p1e1.py").write_text(BANK)
    bank: dict = {}
    exec(BANK, bank)
    known = tmp_path / "known.txt"

    def attack(grade, right_all_the_same=""):
        known.write_text(f"# Known.\n\n{right_all_the_same}")
        answers.right_answers.cache_clear()
        monkeypatch.setattr(answers, "BANKS", tmp_path)
        monkeypatch.setattr(answers, "RIGHT_ALL_THE_SAME", known)
        monkeypatch.setattr(answers, "all_names", lambda: ["p1e1"])
        monkeypatch.setattr(answers, "bank_of", lambda name: SimpleNamespace(**bank))
        monkeypatch.setattr(answers, "solution_source", lambda name, slips: BANK)
        monkeypatch.setattr(answers, "find", lambda name: Exercise("p1e1", ("clamp",), grade))
        return {finding.partition(": ")[2] for finding in run(seed=1, count=20)}

    yield attack
    answers.right_answers.cache_clear()


AT_THE_LIMIT = "p1e1 clamp\n- if x < low:\n+ if x <= low:"
NOT_BELOW = "p1e1 clamp\n- if x < low:\n- return low\n+ pass"


@pytest.mark.proof
def test_a_careful_grader_takes_only_what_is_right(attacked):
    assert attacked(CAREFUL) == {f"accepted\n{AT_THE_LIMIT}"}
    assert attacked(CAREFUL, f"{AT_THE_LIMIT}\n= The same number either way.\n") == set()


@pytest.mark.proof
def test_a_careless_grader_is_found(attacked):
    assert f"accepted\n{NOT_BELOW}" in attacked(CARELESS)


@pytest.mark.proof
def test_only_what_the_answer_needs_is_changed(attacked):
    attacked(CAREFUL)
    (program, lines, _), _ = right_answers("p1e1")
    text = ast.unparse(program)
    assert "never_called" not in text and "WRONG" not in text
    assert "x + 1" not in text and lines >= {1, 2, 3, 4}
