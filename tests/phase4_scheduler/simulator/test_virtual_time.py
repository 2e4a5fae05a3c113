"""Virtual time: exact by hand, lawful at random. And the cost models that tell its clock."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import LabError
from phase1_tokens_embeddings.weights import CARDS, find_shape
from phase2_attention_kvcache.measuring.roofline import work_of_step
from phase2_attention_kvcache.model import ModelConfig
from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import Scheduler, SchedulerConfig
from phase4_scheduler.simulator.cost_model import ComputedCost, LinearCost, StepSize
from phase4_scheduler.simulator.latency import little, summarise
from phase4_scheduler.simulator.load_tests import usage_at
from phase4_scheduler.simulator.parallel_cost import find_cost
from phase4_scheduler.simulator.traffic import TrafficRequest
from phase4_scheduler.simulator.virtual_time import ClockedEngine, simulate

ONE_SECOND = LinearCost((1.0, 0.0, 0.0, 0.0, 0.0))


# ---------------------------------------------------------------------- virtual time by hand


def test_four_requests_by_hand():
    """At most two run at a time, in steps of one second.

    a: 4 prompt tokens, 3 of an answer; arrives at 0.   Steps 0-1, 1-2, 2-3.
    b: 4 and 2; arrives at 0.5, in the middle of a step. Starts at 1: steps 1-2, 2-3.
    c: 4 and 2; arrives at 1.0. Two run until 3: steps 3-4, 4-5.
    Then there is none until d comes at 10.25 and takes one step.
    """
    lines = [(0.0, 4, 3, "a"), (0.5, 4, 2, "b"), (1.0, 4, 2, "c"), (10.25, 4, 1, "d")]
    traffic = [TrafficRequest(*line) for line in lines]
    run = simulate(traffic, SchedulerConfig(max_num_seqs=2), num_blocks=20, cost=ONE_SECOND)
    times = {r.kind: r.token_times for r in run.records}
    assert times == {"a": [1.0, 2.0, 3.0], "b": [2.0, 3.0], "c": [4.0, 5.0], "d": [11.25]}
    assert run.times == [0.0, 1.0, 2.0, 3.0, 4.0, 10.25]
    assert run.running == [1, 2, 2, 1, 1, 1]
    assert run.waiting == [0, 1, 1, 0, 0, 0]
    assert {r.kind: (r.ttft, r.e2e) for r in run.records} == {
        "a": (1.0, 3.0), "b": (1.5, 2.5), "c": (3.0, 4.0), "d": (1.0, 1.0),
    }  # fmt: skip
    assert run.in_system_seconds == 3 + 2.5 + 4 + 1
    assert run.usage == pytest.approx([1 / 19, 2 / 19, 2 / 19, 1 / 19, 1 / 19, 1 / 19])
    assert run.mean_usage() == pytest.approx(8 / 19 / 6)
    assert usage_at(run, 2.5) == pytest.approx(2 / 19) and usage_at(run, 7.0) == 0


def test_the_prefix_cache_sees_what_a_trace_shares():
    for hash_ids, cached in (((1, 2), [0, 1024, 1024]), ((), [0, 0, 0])):
        traffic = [TrafficRequest(100.0 * i, 1100, 5, hash_ids=hash_ids) for i in range(3)]
        run = simulate(traffic, SchedulerConfig(max_model_len=4096), 1000, ONE_SECOND)
        assert [r.num_cached_tokens for r in run.records] == cached


def test_requests_that_can_never_fit_are_refused_and_the_others_served():
    lines = [(0.0, 2000, 5), (0.0, 20, 5), (1.0, 1020, 10), (9.0, 300, 40)]
    traffic = [TrafficRequest(*line) for line in lines]
    run = simulate(traffic, SchedulerConfig(max_model_len=1024), 20, ONE_SECOND)
    assert len(run.records) == 1 and run.refused == 3
    assert "2,000 + 5 tokens do not fit a context of 1,024" in run.refusal
    none = simulate(traffic[:1], SchedulerConfig(max_model_len=1024), 20, ONE_SECOND)
    assert (none.records, none.refused, none.mean_usage(), none.peak_usage) == ([], 1, 0.0, 0.0)


# ---------------------------------------------------------------------- laws


@given(
    lines=st.lists(
        st.tuples(st.floats(0, 30), st.integers(1, 90), st.integers(1, 60), *[st.integers(0, 2)] * 2),
        min_size=1,
        max_size=25,
    ),
    prices=st.tuples(st.floats(0.01, 1), *[st.floats(0, 0.1)] * 4),
    limits=st.builds(
        SchedulerConfig,
        max_num_seqs=st.integers(1, 8),
        max_num_batched_tokens=st.integers(1, 80),
        max_model_len=st.just(400),
        long_prefill_token_threshold=st.sampled_from([0, 7]),
        policy=st.sampled_from(["fcfs", "priority"]),
    ),
    num_blocks=st.integers(12, 60),
    early=st.booleans(),
)
@settings(max_examples=200)
def test_every_run_is_lawful_and_repeats_only_what_the_scheduler_would_decide(
    lines, prices, limits, num_blocks, early
):
    """Prompts of one token over and over find blocks of each other, in a small cache: every block counts."""
    cost = LinearCost(prices)

    def serve(repeat):
        scheduler = Scheduler(limits, BlockManager(num_blocks))
        engine = ClockedEngine(scheduler, cost, async_scheduling=early)
        if not repeat:
            engine._foresee = lambda: None
        for i, (time, isl, osl, priority, token) in enumerate(sorted(lines)):
            engine.advance(time)
            engine.add(TrafficRequest(time, isl, osl, str(i), priority), i, [1 + token] * isl)
        engine.advance(math.inf)
        scheduler.block_manager.check_integrity()
        return engine.run

    run = serve(repeat=True)
    assert run == serve(repeat=False)
    assert {int(r.kind) for r in run.records} == set(range(len(lines)))
    shortest = cost.seconds(StepSize(1, 1, 1, 1))
    for record in run.records:
        assert len(record.token_times) == record.output_tokens
        gaps = np.diff([record.arrival, *record.token_times])
        assert (gaps >= shortest * (1 - 1e-9)).all()  # a token takes a step, also the first
    ends = np.add(run.times, run.durations)
    assert (np.asarray(run.times[1:]) >= ends[:-1] - 1e-9).all()
    assert max(run.running) <= limits.max_num_seqs and 0 < run.peak_usage <= 1
    assert run.preemptions == sum(r.num_preemptions for r in run.records)
    # Little's law: counted by the scheduler, and from what each user saw.
    seconds = summarise(run.records).seconds
    assert run.in_system_seconds / seconds == pytest.approx(little(run.records), rel=1e-9)


# ---------------------------------------------------------------------- cost models


@pytest.mark.parametrize(
    ("name", "message"),
    [("abacus", "unknown card"), ("l4:gpt9", "unknown model"), ("t4:llama-3-70b", "takes 141.1 GB, and one T4 16 GB has 14.5"),
     ("l4-table", "no table of measured kernels"), ("rtx4090-table:gpt2", "use rtx4090-table, rtxpro6000-table")],
)  # fmt: skip
def test_costs_that_do_not_exist(name, message):
    with pytest.raises(LabError, match=message):
        find_cost(name)


@pytest.mark.parametrize(("new", "context"), [(1, 0), (1, 900), (300, 0), (100, 700)])
def test_computed_work_is_that_of_phase_2(new, context):
    shape = find_shape("llama-3-8b")
    ours = ComputedCost.of(shape, CARDS["l4"]).work(StepSize.of([(context, new)]))
    theirs = work_of_step(ModelConfig(**vars(shape)), new, context, 2)
    assert ours.operations == pytest.approx(theirs.operations, rel=1e-12)
    assert ours.bytes == pytest.approx(theirs.bytes, rel=1e-12)


def test_computed_seconds_by_hand():
    """Llama-3 8B on an L4, decode of one token: 15 GB of weights at 300 GB/s."""
    cost = find_cost("l4:llama-3-8b")
    embedding = 128256 * 4096  # is looked up, not read
    read = 2 * (find_shape("llama-3-8b").num_parameters - embedding)
    assert cost.seconds(StepSize(1, 1, 1, 1)) == pytest.approx(read / 300e9, rel=1e-3)
    assert (cost.num_blocks - 1) * 16 * 131072 + 2 * 8.03e9 < 0.9 * CARDS["l4"].memory_bytes
