"""What crosses from the process with the answer to the one that judges, and that no forged transcript is believed."""

import io
import pickle
import sys
from collections import Counter, deque

import numpy as np
import pytest
import torch

from exercises.classroom.answering import recorded, replayed
from exercises.judging.comparing import same
from exercises.judging.transcript import LEFT_OUT, decoded, encoded
from exercises.judging.verdict import Verdict
from tests.exercises.conftest import minus, right

VALUES = [
    None, True, 3, -(2**70), 0.1, float("inf"), "é\n", b"\x00\xff", (1, [2]), {"a": {(1, 2): (2,)}}, {1, 2}, Counter("aab"),
    torch.tensor([[1.5, -2.0]]), torch.tensor(3), torch.ones(0, 2), torch.tensor([1.0]).bfloat16(), torch.float16,
    {frozenset({1}), frozenset()}, {frozenset("ab"): 2}, np.float32(2.5), np.int64(7), [1.0, [2, ["x"]]],
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_data_comes_back_as_it_was(value, monkeypatch):
    assert same(decoded(encoded(value)), value)
    if type(value).__module__ in ("builtins", "collections"):  # also where torch is not loaded
        monkeypatch.delitem(sys.modules, "torch")
        assert same(decoded(encoded(value)), value)


def test_what_is_no_data_is_left_out():
    assert decoded(encoded([print, deque([ValueError("x")])])) == [LEFT_OUT, [LEFT_OUT]]


def test_a_verdict_needs_results(adding):
    """Whatever the process with the answer says: the results in the transcript are compared anew."""
    _, told = recorded(adding, (right,))
    claim, answers, cases = decoded(told)
    one, two, three = cases
    assert replayed(adding, told) == (Verdict("correct"), False)
    wrong = [[], [one], [one, two], [two, one, three], ["é", two, three]]
    for forged in (
        [claim],
        [claim, one],
        *([claim, answers, results] for results in wrong),
        [claim, answers],
    ):
        again, is_forged = replayed(adding, encoded(forged))
        assert again.state == "not yet" and is_forged
    assert replayed(adding, recorded(adding, (minus,))[1])[0].diagnosis == "subtracts"
    assert {replayed(adding, told)[0].diagnosis for told in (b"", b"x", encoded([]))} == {"unusable-result"}


def test_a_transcript_makes_no_other_objects():
    with pytest.raises(pickle.UnpicklingError, match="open is no data"):
        decoded(pickle.dumps(open))
    torch.save(open, file := io.BytesIO())
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        decoded(file.getvalue())
