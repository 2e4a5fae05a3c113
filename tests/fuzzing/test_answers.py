"""The attacker of the graders finds what a careless grader takes, and only that."""

import random

import pytest

from exercises.judging.verdict import Exercise, NotYet
from tests.fuzzing import answers

SOURCE = """
def clamp(x, low, high):
    if x < low:
        return low
    return min(x, high)

def never_called(x):
    return x + 1
"""
CASES = ((2, 1, 3), 2), ((4, 1, 3), 3), ((0, 1, 3), 1)  # a careless grader forgets the last: below the limits
AT_THE_LIMIT = "p1e1 clamp\n- if x < low:\n+ if x <= low:"
NOT_BELOW = "p1e1 clamp\n- if x < low:\n- return low\n+ pass"


@pytest.mark.proof
@pytest.mark.parametrize(
    ("num_cases", "known", "finds"), [(3, "", {AT_THE_LIMIT}), (3, AT_THE_LIMIT, set()), (2, "", {NOT_BELOW})]
)
def test_what_a_grader_should_not_have_taken_is_found(monkeypatch, tmp_path, num_cases, known, finds):
    def grade(clamp):
        for args, expected in CASES[:num_cases]:
            if clamp(*args) != expected:
                raise NotYet("wrong")

    (tmp_path / "known.txt").write_text(f"# Known.\n\n{known}\n= The same number either way.\n")
    monkeypatch.setattr(answers, "RIGHT_ALL_THE_SAME", tmp_path / "known.txt")
    monkeypatch.setattr(answers, "all_names", lambda: ["p1e1"])
    monkeypatch.setattr(answers, "solution_source", lambda name, slips: SOURCE)
    monkeypatch.setattr(answers, "find", lambda name: Exercise("p1e1", ("clamp",), grade))
    answers.right_answer.cache_clear()
    found = {
        finding.removeprefix("accepted\n")
        for case in range(20)
        for finding in answers.try_answer(random.Random(case))
    }
    answers.right_answer.cache_clear()
    assert finds <= found and (num_cases < 3 or found == finds)
