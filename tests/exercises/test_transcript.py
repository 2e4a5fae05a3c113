"""What crosses from the process with the answer to the one that judges, and that no forged transcript is believed."""

import io
import pickle
from base64 import b64encode
from collections import Counter, deque

import numpy as np
import pytest
import torch

from exercises.classroom.answering import recorded, replayed
from exercises.judging.answers import guard
from exercises.judging.comparing import expect_equal, same
from exercises.judging.transcript import LEFT_OUT, decoded, encoded
from exercises.judging.verdict import Exercise
from tests.exercises.adding import minus, right

VALUES = [
    None, True, 3, -(2**70), 0.1, float("inf"), "é\n", b"\x00\xff", (1, [2]), {"a": {(1, 2): (2,)}}, {1, 2}, Counter("aab"),
    torch.tensor([[1.5, -2.0]]), torch.tensor(3), torch.ones(0, 2), torch.tensor([1.0]).bfloat16(), torch.float16,
    {frozenset({1}), frozenset()}, {frozenset("ab"): 2}, np.arange(3.0)[::-1], np.arange(6).reshape(2, 3)[:, ::-1],
    np.arange(3.0), np.array([True, False]), np.float32(2.5), np.int64(7), [1.0, [2, ["x"]]],
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_data_comes_back_as_it_was(value):
    assert same(decoded(encoded(value)), value)


def test_what_is_no_data_is_left_out():
    assert decoded(encoded([print, ValueError("x"), deque([object()]), iter([1])])) == [
        LEFT_OUT, LEFT_OUT, [LEFT_OUT], LEFT_OUT,
    ]  # fmt: skip


def grade_add(add):
    for a, b in ((1, 2), (5, 5)):
        expect_equal(guard(add, a, b), a + b)


def test_a_verdict_needs_results():
    """Whatever the process with the answer says: the results in the transcript are compared anew."""
    exercise = Exercise("p1t1_add", ("add",), grade_add)
    _, (answers, one, two) = recorded(exercise, (right,))
    assert replayed(exercise, [answers, one, two]).state == "correct"
    for forged in (
        [],
        [answers],
        [answers, one],
        [answers, two, one],
        [one],
        [answers, "é", two],
        [answers, one, ""],
    ):
        assert replayed(exercise, forged).state == "not yet"
    assert replayed(exercise, recorded(exercise, (minus,))[1]).diagnosis == "wrong-result"


class Planted:
    def __reduce__(self):
        return open, ("/dev/null",)


def test_a_transcript_makes_no_other_objects():
    file = io.BytesIO()
    torch.save(Planted(), file)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        decoded(b64encode(file.getvalue()).decode())
