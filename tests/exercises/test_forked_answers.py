"""The driver of exercise 3.5: forked answers are those of a model alone, and a wrong copy shows."""

import importlib

import pytest

from exercises.capstone.parts import COMPLETE
from exercises.judging.engine_runs import PROMPTS
from exercises.phase3.forked_answers import TOKENS, forked_answers
from labkit.models import find_model
from tests.exercises.changed import solution

fork, make_room = solution("p3e5_copy_on_write", {})


def never_copies(table, num_tokens, pool):
    if num_tokens // pool.block_size == len(table):
        table.append(pool.take())


def copies_too_late(table, num_tokens, pool):
    make_room(table, num_tokens, pool)
    pool.copy = lambda source, target: None


@pytest.fixture(scope="module")
def right():
    return forked_answers(fork, make_room, PROMPTS[0])


def test_forked_answers_are_those_of_three_requests(right):
    own = importlib.import_module(f"{COMPLETE}.engine")
    engine = own.Engine(find_model("tales"))
    params = [own.Params(TOKENS, temperature=1.0, seed=seed) for seed in range(3)]
    for forked, alone in zip(right.tokens, engine.generate([PROMPTS[0]] * 3, params), strict=True):
        assert forked[: len(alone)] == alone  # forked ones go on behind the end of a text
    assert right.num_copied == 2  # the last of the three writes in place


@pytest.mark.parametrize("wrong", [never_copies, copies_too_late])
def test_a_copy_that_is_missing_shows_in_the_words(wrong, right):
    mine = forked_answers(fork, wrong, PROMPTS[0])
    assert mine.num_copied < 2 and mine.tokens != right.tokens
