"""Tables of kernels, and the recorded runs that they have to explain."""

import numpy as np
import pytest

from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.cost_model import LinearCost
from phase4_scheduler.simulator.parallel_cost import find_cost
from phase4_scheduler.simulator.recorded_runs import (
    QWEN3,
    RECORDED,
    errors,
    expert_table,
    replay,
    simulated_latencies,
)
from phase4_scheduler.simulator.traffic import TrafficRequest
from phase4_scheduler.simulator.virtual_time import simulate

ONE_SECOND = LinearCost((1.0, 0.0, 0.0, 0.0, 0.0))


# ---------------------------------------------------------------------- against real cards


def test_300_requests_on_an_rtx_4090():
    """A full cache, two hundred preemptions, and nothing fitted."""
    recorded = RECORDED["rtx4090"]
    off = errors(recorded, replay(recorded, find_cost("rtx4090-table")))
    assert np.abs(off[:, 0]).tolist() == pytest.approx([1.6, 0.3, 1.1], abs=0.1)  # TTFT, TPOT, E2E: means
    assert (np.abs(off) < 10).all()


def assert_fitted(recorded, run):
    """With the recording's `step` the mean E2E of its first half agrees, without it by no means."""
    ours, theirs = (latencies["E2E"][:150] for latencies in (simulated_latencies(run), recorded.latencies()))
    assert ours.mean() == pytest.approx(theirs.mean(), rel=0.01)
    assert recorded.step * np.mean([r.output_tokens for r in run.records]) > 0.01 * theirs.mean()


def test_300_requests_on_an_rtx_pro_6000():
    """One number fitted on the first half; then TTFT and E2E are nearer than those of the tables' publishers."""
    recorded = RECORDED["rtxpro6000"]
    run = replay(recorded, find_cost("rtxpro6000-table"))
    assert_fitted(recorded, run)
    ours, theirs = np.abs(errors(recorded, run)), np.abs(recorded.published)
    assert (ours[[0, 2]] < theirs[[0, 2]]).all()  # TTFT and E2E, all five statistics
    assert ours[1, 0] < theirs[1, 0] and ours[1].max() < 2.5  # mean TPOT; its tail is not


def test_300_requests_on_two_cards_that_share_experts():
    """One number fitted on the first half (all but the p99 of TTFT is nearer than its publishers' simulator)."""
    run = replay(QWEN3, expert_table())
    assert_fitted(QWEN3, run)
    off = np.abs(errors(QWEN3, run))
    nearer = off < np.abs(QWEN3.published)
    assert nearer.sum() == 14 and not nearer[0, 4]
    assert off[:, 0].max() < 0.6  # means


# ---------------------------------------------------------------------- deciding a step early


def test_deciding_early_by_hand():
    """At most two run at a time, in steps of one second; each step is decided when the one before begins.

    a: 4 prompt tokens, 2 of an answer, at 0.    Steps 0-1 and 1-2, the second decided at 0.
    b: 4 and 1, at 0.5. Seen at 1, when step 2-3 is decided. Asynchronous: first token at 3; otherwise at 2.
    c: 4 and 1, at 0.6. a ends with the step 1-2, known at 2. By then step 2-3 is decided: c waits for step 3-4.
    """
    traffic = [TrafficRequest(*line) for line in ((0.0, 4, 2, "a"), (0.5, 4, 1, "b"), (0.6, 4, 1, "c"))]
    config = SchedulerConfig(max_num_seqs=2)
    early = simulate(traffic, config, 20, ONE_SECOND, async_scheduling=True)
    assert {r.kind: r.token_times for r in early.records} == {"a": [1.0, 2.0], "b": [3.0], "c": [4.0]}
    assert [r.queued for r in early.records] == [0.0, 1.0, 1.0]
    late = simulate(traffic, config, 20, ONE_SECOND)
    assert {r.kind: r.token_times for r in late.records} == {"a": [1.0, 2.0], "b": [2.0], "c": [3.0]}
