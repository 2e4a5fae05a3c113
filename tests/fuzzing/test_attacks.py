"""The attackers, as property-based tests: an example is the seed of a case. `make fuzz` runs them on new seeds."""

import os
import random
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import answers, command_line, engine, hand_ins, http_bodies, model_files, signals
from tests.properties import unshrunk

seeds = st.integers(0, 2**64 - 1)
only_fuzz = pytest.mark.skipif(
    "FUZZ_UNTIL" not in os.environ, reason="for `make fuzz`: it wants a quiet machine"
)
only_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")


def attack(try_case: Callable[[random.Random], list[str]], cases: int) -> Callable:
    """A test of so many cases a round."""

    @settings(unshrunk, max_examples=cases)
    @given(seeds)
    def test(seed):
        assert try_case(random.Random(seed)) == []

    return test


test_random_traffic_and_faults = pytest.mark.proof(attack(engine.try_engine, cases=2))
test_damaged_model_files = attack(model_files.try_file, cases=150)
test_bodies_of_any_shape = attack(http_bodies.try_body, cases=20)
test_options_of_scripts = pytest.mark.proof(attack(command_line.try_program, cases=12))
test_mistakes_in_right_answers = only_fuzz(attack(answers.try_answer, cases=20))
test_hostile_hand_ins = only_fuzz(attack(hand_ins.try_class, cases=3))
test_signals_at_any_moment = only_linux(only_fuzz(attack(signals.try_signal, cases=10)))
