"""The attackers, as property-based tests: an example is the seed of a case. `make fuzz` runs them on new seeds.

Below: each finds what it is there to find where a part is broken.
"""

import os
import random
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phase3_paged_attention.paging import BlockManager
from phase3_paged_attention.sharing import SwappingBlockManager, WindowedBlockManager
from phase4_scheduler.features import faults
from phase4_scheduler.features.faults import FaultIsolatingRunner
from tests.fuzzing import engine, http_bodies, model_files, programs
from tests.fuzzing.engine import try_engine
from tests.fuzzing.model_files import CONTROL, what_is_wrong
from tests.fuzzing.programs import complaint, options_of
from tests.properties import unshrunk

seeds = st.integers(0, 2**64 - 1)
FUZZING = "FUZZ_UNTIL" in os.environ
only_fuzz = pytest.mark.skipif(not FUZZING, reason="for `make fuzz`: it wants a quiet machine")
only_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")


def attack(try_case: Callable[[random.Random], list[str]], cases: int) -> Callable:
    """A test of so many cases, and five times as many in a round of `make fuzz`."""

    @pytest.mark.timeout(1200 if FUZZING else 300)
    @settings(unshrunk, max_examples=cases * (5 if FUZZING else 1))
    @given(seeds)
    def test(seed):
        assert try_case(random.Random(seed)) == []

    return test


test_random_traffic_and_faults = pytest.mark.proof(attack(engine.try_engine, cases=4))
test_damaged_model_files = attack(model_files.try_file, cases=80)
test_bodies_of_any_shape = attack(http_bodies.try_body, cases=20)
# Both send a signal at some moment, and what it meets there depends on the machine's speed.
test_options_of_scripts = only_linux(only_fuzz(attack(programs.try_options, cases=8)))
test_signals_at_any_moment = only_linux(only_fuzz(attack(programs.try_signal, cases=2)))


# ------------------------------------------------------------------ the engine


def skips_a_window_too_early(self, num_computed):
    return max(0, num_computed - self.sliding_window + 1 + self.block_size) // self.block_size


def brings_all_but_one_back(self, table, must_fit=0, swap_in=SwappingBlockManager.swap_in):
    done = swap_in(self, table, must_fit)
    if done:
        self._copies.pop()
    return done


def restarts_nothing(self, output, run=FaultIsolatingRunner._run_one_by_one):
    results = run(self, output)
    self.to_restart = []
    return results


# Where a part is broken, and how; and cases of seed 7 that find it, those with the most findings first. A broken part shows only
# where it changes a token, and which tokens are close depends on the processor's rounding: so there are several.
FAULTS = {
    "a generator is not put back": (faults, "rewind_generator", lambda request: None, [8, 28, 1, 5, 14]),
    "unfilled blocks are found": (BlockManager, "uncache", lambda self, table, first=0: None, [28, 26, 23, 10]),
    "a block leaves the window too early": (
        WindowedBlockManager, "num_skipped_blocks", skips_a_window_too_early, [15, 2, 12, 3],
    ),
    "a block stays in the swap space": (SwappingBlockManager, "swap_in", brings_all_but_one_back, [18, 11, 16, 13]),
    "requests count on what a failed one left": (FaultIsolatingRunner, "_run_one_by_one", restarts_nothing, [9, 1, 17, 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_part_is_found(name, monkeypatch):
    where, attribute, broken, cases = FAULTS[name]
    monkeypatch.setattr(where, attribute, broken)
    assert any(try_engine(random.Random(f"7 {case}")) for case in cases)


@pytest.mark.parametrize("case", sorted({case for *_, cases in FAULTS.values() for case in cases[:1]}))
def test_whatever_goes_wrong_the_others_get_what_they_get_alone(case):
    """Forty requests: models, samplers and listeners that raise, aborts, Ctrl-C in any step, too little memory, swap, windows,
    drafts. Each of these cases finds one of the broken parts above."""
    assert try_engine(random.Random(f"7 {case}")) == []


# ------------------------------------------------------------------ the judges of the others


def refuse(message: str):
    raise ValueError(message)


def compute():
    while True:
        pass


@pytest.mark.parametrize(
    ("read", "finding"),
    [
        (lambda: {}["a"], "KeyError"),
        (compute, "no answer in 1.0 s"),
        (lambda: bytes(2 * 2**30), "MemoryError"),
        (lambda: refuse(CONTROL), "no short line"),
        (lambda: refuse("x" * 10_000), "no short line"),
        (lambda: refuse(""), "no short line"),
    ],
    ids=["traceback", "hang", "memory", "control codes", "a book", "nothing said"],
)
def test_the_judge_finds_what_a_bad_reader_does(tmp_path, read, finding):
    (found,) = what_is_wrong(lambda _: read(), tmp_path, sound=False, seconds=1.0)
    assert finding in found


@pytest.mark.parametrize(
    ("code", "out", "err", "finding"),
    [
        (None, "", "", "does not end"),
        (1, "", "Traceback (most recent call last):\nKeyError: 'a'", "KeyError"),
        (120, "", "Exception ignored in: <stdout>", "Exception ignored"),
        (130, "", 'Traceback\n  File "site-packages/torch"\nKeyboardInterrupt', "torch"),
        (-9, "", "", "code -9"),
        (-2, "", 'File "site-packages/torch"', "code -2"),
        (0, "a\x1b[2J", "", "prints"),
        (2, "", "error: \u202ex", "prints"),
        (2, "", "", "0 characters"),
        (2, "", "error: " + "x" * 5000, "5007 characters"),
        (2, "", "error: a\nb", "2 lines"),
    ],
)
def test_what_is_wrong_is_found(code, out, err, finding):
    assert finding in complaint(code, out, err)


def test_every_script_tells_its_options():
    options = {s.stem: dict(options_of(s)) for s in programs.SCRIPTS if "phase1" in s.parent.name}
    assert all({"--json", "--figures", "--predict"} <= set(known) for known in options.values())
    assert options["gpu_memory_equation"]["--kv"].startswith("{FP")
