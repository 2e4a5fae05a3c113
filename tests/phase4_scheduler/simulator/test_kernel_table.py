"""Tables of kernels, and the recorded runs that they have to explain."""

import gzip
from dataclasses import replace

import numpy as np
import pytest

from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.cost_model import FittedCost
from phase4_scheduler.simulator.expert_parallel import expert_line, serve_in_step
from phase4_scheduler.simulator.kernel_table import AXES, EACH_LAYER, ONCE, KernelTable
from phase4_scheduler.simulator.named_costs import find_cost
from phase4_scheduler.simulator.recorded_runs import QWEN3, RECORDED, errors, expert_table, fit_step, replay
from phase4_scheduler.simulator.step_size import StepSize
from phase4_scheduler.simulator.traffic import TrafficRequest
from phase4_scheduler.simulator.virtual_time import simulate

ONE_SECOND = FittedCost((1.0, 0.0, 0.0, 0.0, 0.0))


def attention(chunk, before, decodes, context):
    """Straight in each axis, so that looking up between two points is exact."""
    return chunk * (1 + before) + decodes * (2 + context)


def write_tables(folder):
    points = [
        (c, kp, n, kd)
        for c in (0, 4, 8) for kp in (0, 16, 32) for n in (0, 1, 4) for kd in (0, 16, 32)
        if (c, n) != (0, 0) and (n or not kd) and (c or not kp) and not (n and not kd)
        and not (c == 8 and n)
    ]  # fmt: skip
    lines = [",".join([*AXES, "time_us"])] + [",".join(map(str, (*p, attention(*p)))) for p in points]
    (folder / "attention.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    kernels = list(dict.fromkeys([*EACH_LAYER, *ONCE]))
    lines = [",".join(["tokens", *kernels])] + [
        ",".join([str(t), *[str(10 * t)] * len(kernels)]) for t in (1, 8)
    ]
    (folder / "dense.csv").write_text("\n".join(lines))
    (folder / "per_sequence.csv").write_text("sequences,lm_head,sampler\n1,100,1\n4,400,4\n")
    return folder


def load(folder):
    return KernelTable.load(folder, "a test", 2, 100, 1000)


def test_a_step_is_a_sum(tmp_path):
    """2 layers; 3 requests that decode at 16, 20 and 30 tokens beside a prompt's piece of 6 tokens behind 8."""
    table = load(write_tables(tmp_path))
    size = StepSize.of([(15, 1), (19, 1), (29, 1), (8, 6)])
    # (A piece of 8 tokens beside decodes is not in the file: the sum of both, without 1 request of 16 tokens.)
    at_4, at_8 = attention(4, 8, 3, 22), attention(8, 8, 0, 0) + attention(0, 0, 3, 22)
    assert table.attention_of(size) == pytest.approx((at_4 + at_8 - attention(0, 0, 1, 16)) / 2)
    layer, once = 8 * 90, 2 * 90 + 4 * 101
    assert table.seconds(size) == pytest.approx(1e-6 * (2 * (table.attention_of(size) + layer) + once))
    more = StepSize.of([(15, 1), (8, 4), (0, 2)])  # two prompts: the longer with the decode, the other alone
    assert table.attention_of(more) == pytest.approx(attention(4, 8, 1, 16) + attention(2, 0, 0, 0))
    beyond = StepSize.of([(63, 1)] * 8)  # twice of all that was timed
    assert table.attention_of(beyond) == pytest.approx(attention(0, 0, 8, 64))


# ---------------------------------------------------------------------- against real cards


def test_300_requests_on_an_rtx_4090():
    """A full cache, two hundred preemptions, and nothing fitted."""
    recorded = RECORDED["rtx4090"]
    off = errors(recorded, replay(recorded, find_cost("rtx4090-table")))
    assert np.abs(off[:, 0]).tolist() == pytest.approx([1.6, 0.3, 1.1], abs=0.1)  # TTFT, TPOT, E2E: means
    assert (np.abs(off) < 10).all()


def test_300_requests_on_an_rtx_pro_6000():
    """One number fitted on the first half; then TTFT and E2E are nearer than those of the tables' publishers."""
    recorded = RECORDED["rtxpro6000"]
    table = find_cost("rtxpro6000-table")
    cost = fit_step(recorded, table)
    assert cost.step == pytest.approx(1.08e-3, abs=2e-5)
    ours, theirs = np.abs(errors(recorded, replay(recorded, cost))), np.abs(recorded.published)
    assert (ours[[0, 2]] < theirs[[0, 2]]).all()  # TTFT and E2E, all five statistics
    assert ours[1, 0] < theirs[1, 0] and ours[1].max() < 2.5  # mean TPOT; its tail is not


def test_300_requests_on_two_cards_that_share_experts():
    """One number fitted on the first half (all but the p99 of TTFT is nearer than its publishers' simulator)."""
    off = np.abs(errors(QWEN3, replay(QWEN3, replace(expert_table(), step=2.38e-3))))
    nearer = off < np.abs(QWEN3.published)
    assert nearer.sum() == 14 and not nearer[0, 4]
    assert off[:, 0].max() < 0.6  # means


@pytest.mark.proof
def test_that_number_is_what_the_first_half_says():
    assert fit_step(QWEN3, expert_table()).step == pytest.approx(2.38e-3, abs=2e-5)


def test_two_ranks_in_step_by_hand():
    """A step takes 1 s a token of the fuller rank. a (4 prompt tokens, 2 of an answer) and b (2 and 3) come together, one
    to each rank: 4 s for both prompts, then 1 s for a token of each. b goes on alone."""

    class SecondsOfTheFuller:
        own = None

        def seconds(self, sizes):
            return max(size.num_tokens for size in sizes)

    traffic = [TrafficRequest(0.0, 4, 2, "a"), TrafficRequest(0.0, 2, 3, "b")]
    run = serve_in_step(traffic, SchedulerConfig(), 20, SecondsOfTheFuller())
    assert {r.kind: r.token_times for r in run.records} == {"a": [4, 5], "b": [4, 5, 6]}
    assert run.durations == [4, 1, 1]


def test_experts_in_use(tmp_path):
    """Four experts on two ranks, one for each token: of the two here, one token of each rank finds 2 x (1 - (3/4)^2)."""
    lines = ["tokens,activated_experts,time_us", "1,1,10", "2,1,20", "1,2,30", "2,2,40"]
    (tmp_path / "experts.csv").write_text("\n".join(lines))
    one = expert_line(tmp_path / "experts.csv", num_experts=4, experts_per_token=1, num_ranks=2)[1]
    assert one == pytest.approx(10)  # 0.875 experts: fewer than were timed, so as long as one
    two = expert_line(tmp_path / "experts.csv", 4, 1, 2)[2]
    assert two == pytest.approx(20 + 20 * (2 * (1 - 0.75**4) - 1))


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
