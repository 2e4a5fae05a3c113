"""Virtual time: exact by hand, lawful at random, and close to the engine. Cost models, experiments, the script."""

import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from labkit.errors import LabError
from phase1_tokens_embeddings.weights.model_shapes import CARDS, find_shape
from phase2_attention_kvcache.model.blocks import ModelConfig
from phase2_attention_kvcache.model.roofline import work_of_step
from phase4_scheduler import workload_simulator
from phase4_scheduler.engine.scheduler import SchedulerConfig
from phase4_scheduler.simulator.cost_model import (
    PEAK_TFLOPS,
    ComputedCost,
    FittedCost,
    StepWork,
    find_cost,
    fit_cost,
    nonnegative_least_squares,
)
from phase4_scheduler.simulator.latency import little, summarise
from phase4_scheduler.simulator.load_tests import (
    Server,
    Stall,
    alarming_usage,
    capacity,
    doubling_usage,
    load_point,
    predicted_stalls,
    predicted_usage,
    stall_config,
    stall_traffic,
    ttft_by_usage,
    usage_at,
)
from phase4_scheduler.simulator.real_time import interrupt, measure_cost, serve, warm_up, work_of_event
from phase4_scheduler.simulator.traffic import PromptMaker, TrafficRequest, draw_traffic, fit_lengths
from phase4_scheduler.simulator.virtual_time import simulate

ONE_SECOND = FittedCost((1.0, 0.0, 0.0, 0.0, 0.0))
A_SECOND_A_TOKEN = FittedCost((0.0, 1.0, 0.0, 0.0, 0.0))


# ---------------------------------------------------------------------- virtual time by hand


def test_three_requests_by_hand():
    """Two seats, steps of one second.

    a: 4 prompt tokens, 3 of an answer; arrives at 0.   Steps 0-1, 1-2, 2-3.
    b: 4 and 2; arrives at 0.5, in the middle of a step. Starts at 1: steps 1-2, 2-3.
    c: 4 and 2; arrives at 1.0. Both seats are taken until 3: steps 3-4, 4-5.
    Then nobody is there until d comes at 10.25 and takes one step.
    """
    traffic = [
        TrafficRequest(0.0, 4, 3, "a"),
        TrafficRequest(0.5, 4, 2, "b"),
        TrafficRequest(1.0, 4, 2, "c"),
        TrafficRequest(10.25, 4, 1, "d"),
    ]
    run = simulate(traffic, SchedulerConfig(max_num_seqs=2), num_blocks=20, cost=ONE_SECOND)
    assert {r.kind: r.token_times for r in run.records} == {
        "a": [1.0, 2.0, 3.0],
        "b": [2.0, 3.0],
        "c": [4.0, 5.0],
        "d": [11.25],
    }
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


def test_chunks_by_hand():
    """A budget of 4 tokens a step, a second a token: a prompt of 10 takes 4 + 4 + 2 seconds."""
    config = SchedulerConfig(max_num_batched_tokens=4)
    run = simulate([TrafficRequest(0.0, 10, 2)], config, 20, A_SECOND_A_TOKEN)
    assert run.durations == [4.0, 4.0, 2.0, 1.0]
    assert run.records[0].token_times == [10.0, 11.0]


def test_what_a_step_has_to_do():
    seen = []

    class Watch:
        def seconds(self, work):
            seen.append(work)
            return 1.0

    simulate(
        [TrafficRequest(0.0, 5, 3), TrafficRequest(0.0, 3, 2)],
        SchedulerConfig(max_num_batched_tokens=6),
        20,
        Watch(),
    )
    # 5 of the first and 1 of the second; 1 and its other 2; 1 and 1. The pairs of tokens are counted one by one.
    assert seen == [
        StepWork(6, 2, 6, 1 + 2 + 3 + 4 + 5 + 1),
        StepWork(3, 2, 6 + 3, 6 + 2 + 3),
        StepWork(2, 2, 7 + 4, 7 + 4),
    ]
    assert StepWork.of([(5, 1), (1, 2)]) == seen[1]


def test_the_prefix_cache_sees_what_a_trace_shares():
    shared = [TrafficRequest(100.0 * i, 1100, 5, hash_ids=(1, 2)) for i in range(3)]
    run = simulate(shared, SchedulerConfig(max_model_len=4096), 1000, ONE_SECOND)
    assert [r.num_cached_tokens for r in run.records] == [0, 1024, 1024]
    alone = [dataclasses.replace(r, hash_ids=()) for r in shared]
    run = simulate(alone, SchedulerConfig(max_model_len=4096), 1000, ONE_SECOND)
    assert [r.num_cached_tokens for r in run.records] == [0, 0, 0]


def test_requests_that_can_never_fit_are_refused_and_the_others_served():
    traffic = [
        TrafficRequest(0.0, 2000, 5),
        TrafficRequest(0.0, 20, 5),
        TrafficRequest(1.0, 1020, 10),
        TrafficRequest(9.0, 300, 40),
    ]
    run = simulate(traffic, SchedulerConfig(max_model_len=1024), 20, ONE_SECOND)
    assert len(run.records) == 1 and run.refused == 3
    assert "2,000 + 5 tokens do not fit a context of 1,024" in run.refusal
    nobody = simulate(traffic[:1], SchedulerConfig(max_model_len=1024), 20, ONE_SECOND)
    assert (nobody.records, nobody.refused, nobody.mean_usage(), nobody.peak_usage) == ([], 1, 0.0, 0.0)


def test_priority_goes_first():
    traffic = [TrafficRequest(0.0, 10, 5, "first", 2)]
    traffic += [TrafficRequest(0.5, 10, 5, "late", 2), TrafficRequest(0.6, 10, 5, "urgent", 0)]
    for policy, order in (("fcfs", ["first", "late", "urgent"]), ("priority", ["first", "urgent", "late"])):
        run = simulate(traffic, SchedulerConfig(max_num_seqs=1, policy=policy), 20, ONE_SECOND)
        assert [r.kind for r in run.records] == order


# ---------------------------------------------------------------------- laws

traffics = st.lists(
    st.tuples(st.floats(0, 30), st.integers(1, 90), st.integers(1, 40), st.integers(0, 2)),
    min_size=1,
    max_size=25,
)
prices = st.tuples(st.floats(0.01, 1), *[st.floats(0, 0.1)] * 4)


@given(
    lines=traffics,
    prices=prices,
    seats=st.integers(1, 8),
    budget=st.integers(1, 80),
    num_blocks=st.integers(12, 40),
    policy=st.sampled_from(["fcfs", "priority"]),
)
@settings(max_examples=80, deadline=None)
def test_every_run_is_lawful(lines, prices, seats, budget, num_blocks, policy):
    traffic = [TrafficRequest(t, p, o, str(i), pr) for i, (t, p, o, pr) in enumerate(sorted(lines))]
    cost = FittedCost(prices)
    config = SchedulerConfig(
        max_num_seqs=seats, max_num_batched_tokens=budget, policy=policy, max_model_len=400
    )
    run = simulate(traffic, config, num_blocks, cost, block_size=16)  # checks its books in the end
    assert run.refused == 0
    assert sorted(r.kind for r in run.records) == sorted(r.kind for r in traffic)
    shortest = cost.seconds(StepWork(1, 1, 1, 1))
    for record in run.records:
        assert len(record.token_times) == record.output_tokens
        gaps = np.diff([record.arrival, *record.token_times])
        assert (gaps >= shortest * (1 - 1e-9)).all()  # a token takes a step, also the first
    ends = np.add(run.times, run.durations)
    assert (np.asarray(run.times[1:]) >= ends[:-1] - 1e-9).all()
    assert max(run.running) <= seats and 0 < run.peak_usage <= 1
    assert run.preemptions == sum(r.num_preemptions for r in run.records)
    # Little's law: counted by the scheduler, and from what each user saw.
    seconds = summarise(run.records).seconds
    assert run.in_system_seconds / seconds == pytest.approx(little(run.records), rel=1e-9)
    again = simulate(traffic, config, num_blocks, cost, block_size=16)
    assert again == run


def test_a_small_cache_preempts_and_still_serves_everybody():
    traffic = draw_traffic("code", 40, math.inf)
    run = simulate(traffic, SchedulerConfig(max_model_len=4096), 400, ONE_SECOND)
    assert run.preemptions > 10 and run.peak_usage > 0.98
    assert sum(len(r.token_times) for r in run.records) == sum(r.output_tokens for r in traffic)


# ---------------------------------------------------------------------- cost models


@given(
    rows=st.lists(st.lists(st.integers(0, 10), min_size=4, max_size=4), min_size=5, max_size=20),
    target=st.lists(st.integers(-5, 50), min_size=20, max_size=20),
)
@settings(max_examples=100, deadline=None)
def test_nonnegative_least_squares_is_scipys(rows, target):
    a, b = np.array(rows, dtype=float), np.array(target[: len(rows)], dtype=float)
    ours = nonnegative_least_squares(a, b)
    assert (ours >= 0).all()
    assert np.linalg.norm(a @ ours - b) == pytest.approx(nnls(a, b)[1], rel=1e-6, abs=1e-6)


def steps(n, seed=0):
    """All kinds of steps: prompts, decodes, both."""
    rng = np.random.default_rng(seed)
    work = []
    for _ in range(n):
        parts = [(int(rng.integers(0, 900)), 1) for _ in range(rng.integers(1, 17))]
        if rng.random() < 0.5:
            parts.append((int(rng.integers(0, 500)), int(rng.integers(2, 256))))
        work.append(StepWork.of(parts))
    return work


def test_known_prices_are_found_again():
    truth = FittedCost((4e-3, 1e-4, 3e-4, 2e-7, 3e-8))
    work = steps(200)
    fitted = fit_cost(work, [truth.seconds(w) for w in work])
    np.testing.assert_allclose(fitted.prices, truth.prices, rtol=1e-6)
    assert fitted.p90_error < 1e-6 and fitted.steps == 150


def test_prices_are_found_in_noise_and_the_error_says_how_much():
    truth, rng = FittedCost((4e-3, 1e-4, 3e-4, 0.0, 3e-8)), np.random.default_rng(1)
    work = steps(600)
    noise = rng.normal(1, 0.1, size=600)
    noise[::50] *= 8  # something else had the machine
    fitted = fit_cost(work, [truth.seconds(w) * x for w, x in zip(work, noise, strict=True)])
    np.testing.assert_allclose(fitted.prices[:3], truth.prices[:3], rtol=0.25)
    assert min(fitted.prices) >= 0
    assert 0.03 < fitted.median_error < 0.12  # the median of |normal| is 0.067
    fresh = steps(100, seed=9)
    ratio = [fitted.seconds(w) / truth.seconds(w) for w in fresh]
    assert min(ratio) > 0.9 and max(ratio) < 1.1


def test_too_few_steps():
    with pytest.raises(ValueError, match="at least 20"):
        fit_cost(steps(19), [1.0] * 19)


def test_saved_and_loaded(tmp_path):
    cost = FittedCost((1.0, 0.5, 0.0, 0.25, 0.0), "a test", 0.1, 0.2, 30, 512)
    cost.save(tmp_path / "cost.json")
    assert find_cost(str(tmp_path / "cost.json")) == cost
    with pytest.raises(LabError, match="cannot write"):
        cost.save(tmp_path / "no" / "cost.json")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"prices": [1]}', "\x00",
     json.dumps(vars(FittedCost((0.0,) * 5, "", 0.1, 0.1, 1, 1))),
     json.dumps(vars(FittedCost((-1.0, 0, 0, 0, 0), "", 0.1, 0.1, 1, 1))),
     json.dumps(vars(FittedCost((math.inf, 0, 0, 0, 0), "", 0.1, 0.1, 1, 1))),
     json.dumps(vars(FittedCost((1.0, 0, 0, 0, 0), "", "?", 0.1, 1, 1)))],
)  # fmt: skip
def test_files_that_are_no_cost_model(tmp_path, text):
    (tmp_path / "cost.json").write_text(text)
    with pytest.raises(LabError, match="is no cost model"):
        FittedCost.load(tmp_path / "cost.json")


@pytest.mark.parametrize(
    ("name", "message"),
    [("abacus", "unknown card"), ("l4:gpt9", "unknown model"), ("t4:llama-3-70b", "does not fit on one T4"),
     ("missing.json", "cannot read the cost model")],
)  # fmt: skip
def test_costs_that_do_not_exist(name, message):
    with pytest.raises(LabError, match=message):
        find_cost(name)


@pytest.mark.parametrize(("new", "context"), [(1, 0), (1, 900), (300, 0), (100, 700)])
def test_computed_work_is_that_of_phase_2(new, context):
    shape = find_shape("llama-3-8b")
    ours = ComputedCost.of(shape, CARDS["l4"]).work(StepWork.of([(context, new)]))
    theirs = work_of_step(ModelConfig(**vars(shape)), new, context, 2)
    assert ours.operations == pytest.approx(theirs.operations, rel=1e-12)
    assert ours.bytes == pytest.approx(theirs.bytes, rel=1e-12)


def test_computed_seconds_by_hand():
    """Llama-3 8B on an L4, decode of one token: 15 GB of weights at 300 GB/s. A long prompt: arithmetic."""
    cost = find_cost("l4:llama-3-8b")
    read = 2 * (
        find_shape("llama-3-8b").num_parameters - 128256 * 4096
    )  # the embedding is looked up, not read
    assert cost.seconds(StepWork(1, 1, 1, 1)) == pytest.approx(read / 300e9, rel=1e-3)
    prompt = cost.seconds(StepWork.of([(0, 4000)]))
    attention = 4 * 32 * 32 * 128 * 4000 * 4001 / 2  # layers, heads, their width, pairs of tokens
    assert prompt == pytest.approx((2 * 4000 * 6.98e9 + attention) / 121e12, rel=1e-3)
    assert set(PEAK_TFLOPS) == set(CARDS)
    assert (cost.num_blocks - 1) * 16 * 131072 + 2 * 8.03e9 < 0.9 * CARDS["l4"].memory_bytes


# ---------------------------------------------------------------------- experiments


@pytest.fixture(scope="module")
def server():
    cost = find_cost("l4:llama-3-8b")
    return Server(cost, SchedulerConfig(max_num_seqs=256, max_model_len=8192), cost.num_blocks)


def test_capacity_is_where_the_queue_begins_to_grow(server):
    small = dataclasses.replace(server, config=SchedulerConfig(max_num_seqs=8, max_model_len=8192))
    most = capacity(small, "chat", 150)
    slow = summarise(small.serve(draw_traffic("chat", 250, 0.6 * most)).records)
    fast = summarise(small.serve(draw_traffic("chat", 250, 1.5 * most)).records)
    assert slow.requests_per_second == pytest.approx(0.6 * most, rel=0.2)
    assert fast.requests_per_second == pytest.approx(most, rel=0.1)
    assert fast.ttft.p95 > 10 * slow.ttft.p95
    assert capacity(dataclasses.replace(server, num_blocks=50), "summarisation", 10) == 0


def test_trouble_starts_where_the_longest_prompt_no_longer_fits(server):
    most = capacity(server, "summarisation", 100)
    points = [load_point(server, "summarisation", 300, load, most) for load in (0.3, 0.5, 0.65, 0.8, 1.1)]
    usages = [p.usage for p in points]
    assert usages == sorted(usages) and usages[-1] > 0.85
    limit, mean = predicted_usage(draw_traffic("summarisation", 300, 1.0), server.cache_tokens)
    assert limit == pytest.approx(1 - 4000 / server.cache_tokens, abs=0.005)
    assert doubling_usage(points) == pytest.approx(mean, rel=0.25)
    assert alarming_usage(ttft_by_usage(points)) == pytest.approx(limit, abs=0.1)


def test_the_usage_of_independent_arrivals_is_predicted():
    """A server that never makes anybody wait or slow down: mean and swing of what is in its cache."""
    from scipy.optimize import brentq

    traffic = draw_traffic("mixed", 280, 4.0, seed=5)
    cache = 200_000
    run = simulate(traffic, SchedulerConfig(10_000, 10**9, 8192), cache * 5, FittedCost((0.01, 0, 0, 0, 0)))
    times, held = np.asarray(run.times), np.asarray(run.usage) * (cache * 5 - 1) * 16
    window = (times > 30) & (times < traffic[-1].arrival)
    mean, deviation = held[window].mean(), held[window].std()
    # The cache for which the formula predicts just this mean. There, mean + 1.645 deviations reach its limit.
    size = brentq(lambda c: predicted_usage(traffic, c)[1] * c - mean, 5_000, 1e7)
    limit = predicted_usage(traffic, size)[0] * size
    assert mean + 1.645 * deviation == pytest.approx(limit, rel=0.06)


def test_one_long_prompt_stalls_everybody_for_as_long_as_predicted():
    cost = FittedCost((2e-3, 1e-4, 5e-5, 2e-7, 1e-8))
    whole, cut = predicted_stalls(cost, 10, 150, 2000, 200)
    found = []
    for chunk in (None, 200):
        config = stall_config(SchedulerConfig(max_model_len=4096), 2000, 11, chunk)
        arrival = simulate(stall_traffic(10, 100, 100, 1, 0.0), config, 2000, cost).times[50]
        stall = Stall.of(
            simulate(stall_traffic(10, 100, 100, 2000, arrival), config, 2000, cost).records, arrival
        )
        found.append(stall.worst)
        assert stall.usual == pytest.approx(cost.seconds(StepWork.of([(125, 1)] * 10)), rel=0.01)
    assert found == pytest.approx([whole, cut], rel=0.01)
    assert whole > 5 * cut


# ---------------------------------------------------------------------- the real engine


@pytest.fixture(scope="module")
def make_engine():
    from phase4_scheduler.engine.config import EngineConfig
    from phase4_scheduler.engine.engine import LLMEngine

    first = LLMEngine.from_pretrained("tales-draft", dtype="float32", device="cpu", max_num_seqs=1)

    def make(**config):
        return LLMEngine(first.model, first.tokenizer, EngineConfig(**config))

    return make


def test_engine_and_virtual_time_decide_the_same_steps(make_engine):
    """All at once, so that times cannot matter: the same work in each step, preemptions included."""
    traffic, factor = fit_lengths(draw_traffic("code", 10, math.inf), 120)
    prompts = PromptMaker(1000, 0, factor)
    limits = dict(max_num_seqs=6, max_num_batched_tokens=64)
    engine, real, virtual = make_engine(num_blocks=18, **limits), [], []
    preempted = []
    engine.record(lambda event: (real.append(work_of_event(event)), preempted.extend(event["preempted"])))
    records = list(serve(engine, traffic, prompts))

    class Watch:
        def seconds(self, work):
            virtual.append(work)
            return 1.0

    simulate(
        traffic,
        SchedulerConfig(**limits, max_model_len=engine.model.config.max_context),
        18,
        Watch(),
        prompts=prompts,
    )
    assert real == virtual and preempted
    assert sorted(len(r.token_times) for r in records) == sorted(r.output_tokens for r in traffic)
    assert all(r.ttft > 0 and (r.itls > 0).all() for r in records)


def test_a_clock_is_fitted_to_the_engine(make_engine):
    cost = measure_cost(make_engine, 128, 8, source="test")
    assert cost.steps > 15 and max(cost.prices) > 0 and cost.longest <= 128
    assert 0 < cost.seconds(StepWork.of([(50, 1)] * 4)) < 10


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_gpu_is_warmed_up_and_remembers_nothing_of_it(make_engine, device):
    class OnDevice:  # the engine, on a machine that says it is another
        model = SimpleNamespace(device=torch.device(device))

        def __getattr__(self, name):
            return getattr(engine, name)

    engine, prompts, steps = make_engine(max_num_seqs=4), PromptMaker(1000), []
    traffic, _ = fit_lengths(
        draw_traffic("mixed", 6, 0.01), 128
    )  # spread over minutes: nobody waits for that
    engine.record(steps.append)
    warm_up(OnDevice(), traffic, prompts)
    assert bool(steps) == (device == "cuda")
    at_once = [dataclasses.replace(r, arrival=0.0) for r in traffic]
    assert all(r.num_cached_tokens == 0 for r in serve(engine, at_once, prompts))


def test_the_last_request_interrupts_the_others(make_engine):
    traffic = stall_traffic(3, 10, 30, 100, math.inf, 2)
    records = interrupt(make_engine(max_num_seqs=4), traffic, 5, PromptMaker(1000))
    assert [len(r.token_times) for r in records] == [30, 30, 30, 2]
    before = [sum(t <= records[-1].arrival for t in r.token_times) for r in records]
    assert before == [6, 6, 6, 0]
    assert Stall.of(records, records[-1].arrival).ttft > 0


# ---------------------------------------------------------------------- the script

CLAIMS = {
    "four-patterns", "histogram-clusters", "kv-usage-alert", "chunked-prefill", "littles-law", "virtual-clock",
}  # fmt: skip
FIGURES = ("traffic_clusters", "traffic_timeline", "load_knee", "long_prompt_stall")


def run(tmp_path, *arguments):
    file = tmp_path / "report.json"
    code = workload_simulator.main(
        ["--quick", "--model", "tales-draft", "--json", str(file), *map(str, arguments)]
    )
    return code, json.loads(file.read_text()) if file.exists() else None


def test_script(tmp_path):
    code, report = run(tmp_path, "--save-cost", tmp_path / "cost.json")
    assert code == 0
    found = {p["claim"]: p for p in report["predictions"]}
    assert set(found) == CLAIMS
    assert found["histogram-clusters"]["measured"] == 3
    assert FittedCost.load(tmp_path / "cost.json").steps > 0
    assert report["results"]["virtual"]["requests"] == 200
    for name in FIGURES:
        assert (tmp_path / "outputs" / f"{name}.png").stat().st_size > 10_000


@pytest.fixture
def short_story(monkeypatch):
    """The script without the parts that do not depend on its options."""
    for part in ("guests", "load_sweep", "long_prompt"):
        monkeypatch.setattr(workload_simulator, part, lambda *_: None)
    monkeypatch.setattr(workload_simulator, "per_pattern", lambda *_: 1.0)


def test_script_with_a_trace_and_a_saved_clock(tmp_path, capsys, short_story):
    FittedCost((5e-3, 1e-4, 3e-4, 0.0, 1e-8), "elsewhere", 0.1, 0.2, 100, 1024).save(tmp_path / "cost.json")
    lines = [
        dict(timestamp=100 * i, input_length=1100, output_length=20, hash_ids=[1, 2, 9 + i])
        for i in range(30)
    ]
    trace = write_lines(tmp_path, [json.dumps(line) for line in lines] + ["oops"])
    code, report = run(
        tmp_path, "--trace", trace, "--skip-bad-lines", "--cost", tmp_path / "cost.json", "--pattern", "chat",
        "--requests", 20, "--policy", "priority",
    )  # fmt: skip
    assert code == 0
    assert report["results"]["trace"] == dict(format="Mooncake JSONL", requests=20, skipped=1)
    virtual = report["results"]["virtual"]
    assert virtual["requests"] == 20 and virtual["prompt_tokens"] == 20 * 1100
    assert virtual["prefix_hit_rate"] == pytest.approx(19 * 1024 / (20 * 1100))
    assert "1 lines were skipped" in " ".join(capsys.readouterr().out.split())


def test_script_in_real_time(tmp_path, capsys, short_story):
    code, report = run(
        tmp_path, "--real", "--requests", 6, "--rate", 20, "--pattern", "chat", "--num-blocks", 200
    )
    assert code == 0
    assert report["results"]["real"]["requests"] == 6 and "virtual" not in report["results"]
    assert "all lengths are scaled by" in " ".join(capsys.readouterr().out.split())


def write_lines(tmp_path, lines):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "0"], "--rate is 0.0"),
        (["--rate", "nan"], "--rate is nan"),
        (["--requests", "0"], "--requests is 0"),
        (["--burstiness", "-1"], "--burstiness is -1.0"),
        (["--ttft-slo", "0"], "--ttft-slo is 0.0"),
        (["--tpot-slo", "inf"], "--tpot-slo is inf"),
        (["--max-num-seqs", "0"], "--max-num-seqs is 0"),
        (["--num-blocks", "1"], "--num-blocks is 1"),
        (["--cost", "abacus"], "unknown card 'abacus'"),
        (["--trace", "nowhere.csv"], "cannot read the trace nowhere.csv"),
        (["--skip-bad-lines"], "--skip-bad-lines is for --trace"),
        (["--model", "nonsense/x/y"], "no model folder"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, capsys, arguments, message):
    code, report = run(tmp_path, *arguments)
    error = capsys.readouterr().err.strip()
    assert code == 2 and report is None
    assert message in error and "\n" not in error and "Traceback" not in error
