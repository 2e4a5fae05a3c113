"""The driver of exercise 3.5: forked answers are those of a model alone."""

import importlib

from exercises.capstone.parts import COMPLETE
from exercises.judging.engine_runs import PROMPTS
from exercises.phase3.forked_answers import TOKENS, forked_answers
from labkit.models import find_model
from tests.exercises.changed import solution


def test_forked_answers_are_those_of_three_requests():
    forked = forked_answers(*solution("p3e5_copy_on_write", {}), PROMPTS[0])
    own = importlib.import_module(f"{COMPLETE}.engine")
    engine = own.Engine(find_model("tales"))
    params = [own.Params(TOKENS, temperature=1.0, seed=seed) for seed in range(3)]
    for tokens, alone in zip(forked.tokens, engine.generate([PROMPTS[0]] * 3, params), strict=True):
        assert tokens[: len(alone)] == alone  # forked ones go on behind the end of a text
    assert forked.num_copied == 2  # the last of the three writes in place
