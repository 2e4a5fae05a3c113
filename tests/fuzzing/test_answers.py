"""The attacker of the graders finds what a careless grader takes, and only that."""

import ast
from types import SimpleNamespace

import pytest

from exercises.judging.verdict import Exercise, NotYet
from tests.fuzzing import answers

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
CASES = ((2, 1, 3), 2), ((4, 1, 3), 3), ((0, 1, 3), 1)  # a careless grader forgets the last: below the limits
AT_THE_LIMIT = "p1e1 clamp\n- if x < low:\n+ if x <= low:"
NOT_BELOW = "p1e1 clamp\n- if x < low:\n- return low\n+ pass"


@pytest.mark.proof
@pytest.mark.parametrize(
    ("num_cases", "known", "finds"), [(3, "", AT_THE_LIMIT), (3, AT_THE_LIMIT, ""), (2, "", NOT_BELOW)]
)
def test_what_a_grader_should_not_have_taken_is_found(monkeypatch, tmp_path, num_cases, known, finds):
    def grade(clamp):
        for args, expected in CASES[:num_cases]:
            if clamp(*args) != expected:
                raise NotYet("wrong")

    (tmp_path / "p1e1.py").write_text(BANK)
    (tmp_path / "known.txt").write_text(f"# Known.\n\n{known}\n= The same number either way.\n")
    bank: dict = {}
    exec(BANK, bank)
    answers.right_answers.cache_clear()
    for name, value in {
        "BANKS": tmp_path,
        "RIGHT_ALL_THE_SAME": tmp_path / "known.txt",
        "all_names": lambda: ["p1e1"],
        "bank_of": lambda name: SimpleNamespace(**bank),
        "solution_source": lambda name, slips: BANK,
        "find": lambda name: Exercise("p1e1", ("clamp",), grade),
    }.items():
        monkeypatch.setattr(answers, name, value)
    found = {finding.partition(": ")[2] for finding in answers.run(seed=1, count=20)}
    program, lines, _ = answers.right_answers("p1e1")[0]
    answers.right_answers.cache_clear()
    assert (
        f"accepted\n{finds}" in found
        if finds == NOT_BELOW
        else found == ({f"accepted\n{finds}"} if finds else set())
    )
    assert "never_called" not in ast.unparse(program) and lines >= {1, 2, 3, 4}  # only what the answer needs
