"""The attackers, as property-based tests: an example is the seed of a case. `make fuzz` runs them on new seeds."""

import os
import random
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phase4_scheduler.server.client import running_server
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
test_options_and_damaged_reports = pytest.mark.proof(attack(command_line.try_program, cases=12))
test_mistakes_in_right_answers = only_fuzz(attack(answers.try_answer, cases=20))
test_hostile_hand_ins = only_fuzz(attack(hand_ins.try_class, cases=3))
test_signals_at_any_moment = only_linux(only_fuzz(attack(signals.try_signal, cases=10)))


@pytest.fixture(scope="module")
def server():
    with running_server("--max-num-seqs", "8", "--max-model-len", str(http_bodies.CONTEXT)) as server:
        yield server


@only_fuzz
@settings(unshrunk, max_examples=50)
@given(seeds)
def test_bodies_of_any_size_and_shape(server, seed):
    assert http_bodies.try_body(random.Random(seed), server) == []
