"""What crosses from the process with the answer to the one that judges, and that no forged transcript is believed."""

import json
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from exercises.classroom.answering import recorded, replayed
from exercises.judging.answers import call, guard, look
from exercises.judging.comparing import expect_equal
from exercises.judging.judge import unchanged
from exercises.judging.transcript import Decoder, Encoder, Opaque
from exercises.judging.verdict import Exercise, NotYet
from exercises.phase4.small_requests import Pool, SmallRequest
from tests.exercises.adding import minus, right

VALUES = [
    *(
        None,
        True,
        3,
        -(2**70),
        0.1,
        float("inf"),
        "é\n",
        b"\x00\xff",
        (1, [2]),
        {"a": {1: (2,)}},
        {1, 2},
        deque([1]),
    ),
    *(
        torch.tensor([[1.5, -2.0]]),
        torch.tensor(3),
        torch.ones(0, 2),
        torch.tensor([1.0]).bfloat16(),
        np.arange(3.0),
    ),
    *(torch.float16, [1.0, [2, ["x"]]], np.array([True, False])),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_data_comes_back_as_it_was(value):
    back = Decoder([])(json.loads(json.dumps(Encoder([])(value))))
    assert type(back) is type(value) and unchanged(value, back)
    assert getattr(back, "dtype", None) == getattr(value, "dtype", None)


def both(grade, *answers):
    """(the grader's verdict with the answers, the verdict by the transcript)"""
    exercise = Exercise("p1t1_add", tuple("abc"[: len(answers)]), grade)
    verdict, lines = recorded(exercise, answers)
    return verdict, replayed(exercise, lines)


def test_what_a_call_changed_is_changed_again_and_is_the_same_thing():
    def step(table, pool, ann, note):
        note(5)
        pool.allocate(ann, 8)
        ann.num_computed_tokens = 8
        table.append([9])
        return [(ann, 3), table]

    def grade(step):
        table, pool, ann, noted = [[1]], Pool(9), SmallRequest("Ann", 10), []
        note = lambda x: noted.append(x)  # noqa: E731
        note.__module__ = "exercises.phase4.grade_it"
        (who, n), same = guard(step, table, pool, ann, note)
        assert who is ann and same is table and n == 3
        assert table == [[1], [9]] and noted == [5] and pool.held == {ann: 2} and ann.num_computed_tokens == 8

    assert [verdict.state for verdict in both(grade, step)] == ["correct", "correct"]


def test_objects_of_an_answer_are_looked_at_and_never_cross():
    class Box:
        def __init__(self):
            self.held = [1]

        def put(self, x):
            if x < 0:
                raise ValueError("below 0")
            self.held.append(x)

    def grade(box_class):
        box = guard(box_class)
        guard(box.put, 2)
        expect_equal(look(box, "held"), [1, 2])
        with pytest.raises(ValueError, match="below 0"):
            call(box.put, -1)
        with pytest.raises(NotYet, match="raises"):
            guard(box.put, -1)
        seen.append(type(box))

    seen = []
    assert [verdict.state for verdict in both(grade, Box)] == ["correct", "correct"] and seen == [Box, Opaque]


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
        ["[]"],
        [answers, "[false, 3"],
        [answers, one, "[" * 10**5],
    ):
        assert replayed(exercise, forged).state == "not yet"
    assert both(grade_add, minus)[1].diagnosis == "wrong-result"


@dataclass
class Planted:
    x: int


@pytest.mark.parametrize(
    "value",
    [
        ["record", 0, "os:system", []],
        ["record", 0, "subprocess:Popen", []],
        ["record", 0, f"{__name__}:Planted", []],  # no class of the course
        ["record", 0, "exercises.judging.sandbox:run_apart", []],
        ["record", 0, "exercises.judging.sandbox:os.environ", []],
        ["@", 3],
        ["dtype", "torch.load"],
        ["tensor", 0, "", ["torch.save", [1], ""]],
        ["array", 0, "", ["|O", [1], "AAAAAAAAAAA="]],
        ["list", 7, "", []],
        ["anything"],
    ],
)
def test_a_transcript_makes_no_other_objects(value):
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        Decoder([])(value)
