"""The planner's search, its SLO and its refusals."""

from dataclasses import replace

import numpy as np
import pytest

from labkit.errors import LabError
from phase1_tokens_embeddings.weights import find_card, find_shape
from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.cost_model import ComputedCost, LinearCost, StepSize
from phase4_scheduler.simulator.fleet import ReplicaConfig, serve_fleet
from phase4_scheduler.simulator.parallel_cost import cost_on_cards
from phase4_scheduler.simulator.planning import (
    CLOCK_EFFICIENCY,
    CLOCK_RANGE,
    RECORDED_EFFICIENCY,
    SLO,
    alone,
    binding_limit,
    bootstrap,
    make_plan,
    p95,
    why_impossible,
)
from phase4_scheduler.simulator.recorded_runs import RECORDED, replay, simulated_latencies
from phase4_scheduler.simulator.routers import LeastLoaded, RoundRobin
from phase4_scheduler.simulator.traffic import TrafficRequest, draw_traffic

COST = LinearCost((20e-3, 2e-4, 1e-3, 1e-7, 1e-8))
LIMITS = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=512, max_model_len=8192)
CONFIG = ReplicaConfig(COST, LIMITS, 500, enable_prefix_caching=False)


# ---------------------------------------------------------------------- the search


@pytest.mark.parametrize("seed", range(20))
def test_bisection_finds_what_exhaustive_search_finds(seed):
    rng = np.random.default_rng(seed)
    traffic = draw_traffic("chat", 40, rate=float(rng.uniform(20, 120)), seed=seed)
    traffic = [replace(r, output_tokens=r.output_tokens // 10) for r in traffic]
    slo = SLO(float(rng.uniform(0.2, 1.0)), float(rng.uniform(0.04, 0.06)), 0.9)
    keeps = [slo.kept_share(serve_fleet(traffic, CONFIG, n, LeastLoaded())) >= slo.share for n in range(1, 9)]
    if True not in keeps:
        with pytest.raises(LabError, match=r"more than 8 replicas|no number of replicas"):
            make_plan(traffic, CONFIG, slo, LeastLoaded, 1.0, most=8)
        return
    plan = make_plan(traffic, CONFIG, slo, LeastLoaded, 1.0, most=8)
    assert plan.replicas == keeps.index(True) + 1


def test_a_plan_adds_up():
    traffic = draw_traffic("chat", 120, rate=8.0, seed=1)
    slo = SLO(0.5, 0.06, 0.9)
    plan = make_plan(traffic, CONFIG, slo, LeastLoaded, 3.0)
    tokens = sum(r.output_tokens for r in traffic) / traffic[-1].arrival
    assert plan.dollars_per_hour == 3 * plan.replicas
    assert plan.dollars_per_million == pytest.approx(plan.dollars_per_hour / 3600 / tokens * 1e6)
    assert plan.kept.low <= plan.kept.value <= plan.kept.high and plan.kept.value >= 0.9
    assert plan.ttft.low <= plan.ttft.value <= plan.ttft.high
    assert 0 <= plan.headroom <= 1 and plan.limit


# ---------------------------------------------------------------------- the SLO


def test_a_refused_request_misses_the_slo():
    config = ReplicaConfig(COST, SchedulerConfig(max_model_len=100), 400)
    traffic = [TrafficRequest(float(i), 200 if i % 2 else 10, 5) for i in range(20)]
    run = serve_fleet(traffic, config, 1, RoundRobin())
    assert SLO(10, 10).kept_share(run) == pytest.approx(0.5, abs=0.05)


def test_what_stands_in_the_way():
    traffic = draw_traffic("chat", 60, rate=20.0, seed=0)
    run = serve_fleet(traffic, CONFIG, 1, RoundRobin())
    assert binding_limit(run, SLO(0.01, 10)) == "TTFT: waiting for a running request to end (max_num_seqs)"
    assert binding_limit(run, SLO(1000, 0.01)).endswith("(memory bandwidth)")
    assert binding_limit(run, SLO(1000, 1.02 * run.decode_step)).endswith("(token budget)")
    few = replace(CONFIG, num_blocks=60)
    run = serve_fleet(traffic, few, 1, RoundRobin())
    assert binding_limit(run, SLO(0.01, 10)) == "TTFT: waiting for free blocks (KV cache)"
    idle = serve_fleet(traffic[:1], CONFIG, 1, RoundRobin())
    assert binding_limit(idle, SLO(0.01, 10)) == "TTFT: the prompts themselves (arithmetic)"


def test_alone_is_what_an_idle_replica_does():
    request = TrafficRequest(0.0, 1300, 40)
    (record,) = serve_fleet([request], CONFIG, 1, RoundRobin()).records
    ttft, gap = alone(request, CONFIG)
    assert ttft == pytest.approx(record.ttft) and gap == pytest.approx(record.tpot, rel=1e-3)


@pytest.mark.parametrize("context, blocks, limit", [(1000, 500, "context"), (8192, 40, "KV cache")])
def test_requests_that_fit_nowhere_name_the_limit(context, blocks, limit):
    config = ReplicaConfig(COST, SchedulerConfig(max_model_len=context), blocks, enable_prefix_caching=False)
    traffic = draw_traffic("summarisation", 50, 1.0)
    with pytest.raises(LabError, match=f"forbids it is {limit}: 100% of the requests"):
        make_plan(traffic, config, SLO(60, 10), LeastLoaded, 1.0)


def test_a_cache_can_make_an_slo_possible():
    traffic = [TrafficRequest(10.0 * i, 1610, 5, hash_ids=tuple(range(100))) for i in range(40)]
    cold = ReplicaConfig(COST, LIMITS, 500, enable_prefix_caching=False)
    warm = ReplicaConfig(COST, LIMITS, 500)
    assert why_impossible(traffic, cold, SLO(0.1, 1.0)).startswith("arithmetic")
    assert why_impossible(traffic, warm, SLO(0.1, 1.0)) == ""


def test_answers_of_one_token_have_no_gaps():
    traffic = [TrafficRequest(float(i), 100, 1) for i in range(20)]
    assert why_impossible(traffic, CONFIG, SLO(1.0, 0.001)) == ""


def test_nine_of_ten_are_a_share_of_nine_tenths():
    """And what comes while the fleet fills up is not judged: the first three of thirteen."""
    traffic = [TrafficRequest(float(i), 5000 if i in (0, 1, 7) else 100, 5) for i in range(13)]
    assert why_impossible(traffic, CONFIG, SLO(0.5, 1.0, 0.9)) == ""
    assert why_impossible(traffic, CONFIG, SLO(0.5, 1.0, 0.91)).startswith("arithmetic")


def test_neighbours_that_share_their_fate_widen_the_interval():
    rng = np.random.default_rng(0)
    values = rng.normal(size=1000)
    waves = np.sort(values)  # the same values, but a bad hour is bad for all in it
    narrow, wide = bootstrap(values, np.mean), bootstrap(waves, np.mean)
    assert wide[1] - wide[0] > 3 * (narrow[1] - narrow[0])
    assert narrow[0] < values.mean() < narrow[1]
    assert bootstrap([2.0] * 10, p95) == (2.0, 2.0)


# ---------------------------------------------------------------------- cards


def test_eight_cards_without_nvlink_wait_for_their_wires_and_two_for_their_memory():
    traffic = [TrafficRequest(float(i), 100, 20) for i in range(20)]
    for number, why, short in ((8, "wires: ", "(wires)"), (2, "memory bandwidth: ", "(memory bandwidth)")):
        cost = cost_on_cards(find_shape("llama-3-8b"), find_card("l4"), number)
        config = ReplicaConfig(cost, LIMITS, cost.num_blocks)
        assert why_impossible(traffic, config, SLO(1, 0.01)).startswith(why)
        run = serve_fleet(traffic, config, 1, LeastLoaded())
        assert binding_limit(run, SLO(1, 0.01)).endswith(short)


def test_both_recordings_on_one_card_agree_with_the_clock_that_a_plan_uses():
    """300 requests, vLLM 0.19 and Llama 3.1 8B: mean TTFT, TPOT and end-to-end time. The recorded share of the data sheet is within
    the range that is stated for other cards."""
    for name, recorded in RECORDED.items():
        efficiency = RECORDED_EFFICIENCY[name]
        cost = ComputedCost.of(find_shape("llama-3-8b"), find_card(name), efficiency=efficiency)
        ours, theirs = simulated_latencies(replay(recorded, cost)), recorded.latencies()
        for metric, values in theirs.items():
            assert ours[metric].mean() == pytest.approx(values.mean(), rel=0.04), (name, metric)
        assert CLOCK_RANGE[0] <= CLOCK_EFFICIENCY / efficiency <= CLOCK_RANGE[1]


def test_few_bits_shorten_arithmetic_only_on_cards_that_compute_in_them_and_a_small_cache_holds_more():
    shape, prompt = find_shape("llama-3-8b"), StepSize.of([(0, 4000)])

    def cost(card, precision, kv_precision="FP16"):
        return ComputedCost.of(shape, find_card(card), precision, kv_precision=kv_precision)

    linear = 2 * 4000 * cost("h100", "FP16").weights / 989e12
    for card, precision, faster in (
        ("h100", "FP8", 1979 / 989),
        ("b200", "NVFP4", 4),
        ("h100", "NVFP4", 1),
        ("a100-80", "FP8", 1),
    ):
        plain = cost(card, "FP16").seconds(prompt)
        saved = linear * 989 / find_card(card).tensor_tflops * (1 - 1 / faster)
        assert cost(card, precision).seconds(prompt) == pytest.approx(plain - saved, rel=1e-9)
    half = cost("h100", "FP16", "FP8")
    assert half.num_blocks == pytest.approx(2 * cost("h100", "FP16").num_blocks, abs=1)
    many = StepSize.of([(8000, 1)] * 200)
    assert half.work(many).bytes < 0.6 * cost("h100", "FP16").work(many).bytes
