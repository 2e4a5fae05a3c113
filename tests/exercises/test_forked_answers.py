"""The driver of exercise 3.5: forked answers are the engine's answers, and a wrong copy shows."""

import pytest

from exercises.judging.engine_runs import PROMPTS, run
from exercises.phase3.forked_answers import forked_answers
from exercises.phase3.into_engine import THREE_ANSWERS, CopyManager, copy_on_write_in_the_engine
from phase3_paged_attention.sharing import ForkingBlockManager
from tests.exercises.changed import solution

fork, make_room = solution("p3e5_copy_on_write", {})


def never_copies(table, num_tokens, pool):
    if num_tokens // pool.block_size == len(table):
        table.append(pool.take())


def copies_too_late(table, num_tokens, pool):
    make_room(table, num_tokens, pool)
    pool.copy = lambda source, target: None


@pytest.fixture(scope="module")
def of_the_course():
    return forked_answers(ForkingBlockManager(40), PROMPTS[0], THREE_ANSWERS)


def test_forked_answers_are_those_of_three_requests(of_the_course):
    answers, num_copied = of_the_course
    assert answers.tokens == run((PROMPTS[:1],), THREE_ANSWERS).tokens
    assert num_copied == 2  # the last of the three writes in place


def test_the_learners_tables_give_the_same(of_the_course):
    answers, num_copied = forked_answers(CopyManager(40, fork, make_room), PROMPTS[0], THREE_ANSWERS)
    assert (answers.tokens, num_copied) == (of_the_course[0].tokens, 2)


@pytest.mark.parametrize("wrong", [never_copies, copies_too_late])
def test_a_copy_that_is_missing_shows_in_the_words(wrong, of_the_course):
    answers, num_copied = forked_answers(CopyManager(40, fork, wrong), PROMPTS[0], THREE_ANSWERS)
    assert num_copied < 2 and answers.tokens != of_the_course[0].tokens


def test_what_a_learner_sees(capsys):
    copy_on_write_in_the_engine(fork, make_room)
    assert "blocks copied: 2, as with the course's own" in capsys.readouterr().out
