"""Experiments in virtual time, and the real engine beside it."""

import dataclasses
import math
import random
from types import SimpleNamespace

import pytest

from phase2_attention_kvcache.model import SamplingParams, Transformer
from phase4_scheduler.engine import EngineConfig, LLMEngine, SchedulerConfig
from phase4_scheduler.features.recording import record
from phase4_scheduler.simulator.batching import Job, serve_continuously, serve_statically
from phase4_scheduler.simulator.cost_model import StepSize
from phase4_scheduler.simulator.fleet import ReplicaConfig
from phase4_scheduler.simulator.latency import summarise
from phase4_scheduler.simulator.load_tests import capacity
from phase4_scheduler.simulator.parallel_cost import find_cost
from phase4_scheduler.simulator.traffic import TrafficRequest, draw_traffic
from phase4_scheduler.simulator.virtual_time import ClockedEngine

# ---------------------------------------------------------------------- experiments


def test_capacity_is_where_the_queue_begins_to_grow():
    cost = find_cost("l4:llama-3-8b")
    small = ReplicaConfig(cost, SchedulerConfig(max_num_seqs=8, max_model_len=8192), cost.num_blocks)
    most = capacity(small, "chat", 150)
    slow = summarise(small.serve(draw_traffic("chat", 250, 0.6 * most)).records)
    fast = summarise(small.serve(draw_traffic("chat", 250, 1.5 * most)).records)
    assert slow.requests_per_second == pytest.approx(0.6 * most, rel=0.2)
    assert fast.requests_per_second == pytest.approx(most, rel=0.1)
    assert fast.ttft.p95 > 10 * slow.ttft.p95
    assert capacity(dataclasses.replace(small, num_blocks=50), "summarisation", 10) == 0


# ---------------------------------------------------------------------- the real engine


@pytest.fixture(scope="module")
def make_engine():
    model = Transformer.from_pretrained("tales-draft", dtype="float32", device="cpu")
    return lambda **config: LLMEngine(model, None, EngineConfig(**config))


def test_engine_and_virtual_time_decide_the_same_steps(make_engine):
    """All at once, so that times cannot matter: the same work in each step, preemptions included."""
    rng = random.Random(0)
    traffic = [TrafficRequest(0.0, rng.randint(10, 40), rng.randint(30, 70)) for _ in range(10)]
    prompts = [[rng.randrange(1000) for _ in range(r.prompt_tokens)] for r in traffic]
    limits = dict(max_num_seqs=6, max_num_batched_tokens=64)
    engine, events, virtual = make_engine(num_blocks=18, **limits), [], []
    record(engine, events.append)
    engine.generate(prompts, [SamplingParams(max_tokens=r.output_tokens, ignore_eos=True) for r in traffic])

    watch = SimpleNamespace(seconds=lambda size: virtual.append(size) or 1.0)
    config = SchedulerConfig(**limits, max_model_len=engine.model.config.max_context)
    clocked = ClockedEngine.made_from(ReplicaConfig(watch, config, 18))
    for i, (request, prompt) in enumerate(zip(traffic, prompts)):
        clocked.add(request, i, prompt)
    clocked.advance(math.inf)
    real = [StepSize.of((e["computed"][name], n) for name, n in e["tokens"].items()) for e in events]
    assert real == virtual
    assert any(event["preempted"] for event in events)


# ---------------------------------------------------------------------- static and continuous


def test_static_and_continuous_give_the_same_tokens_and_count_their_steps(make_engine):
    engine = make_engine(max_num_seqs=2)
    jobs = [Job("A", [5, 6], 7), Job("B", [8], 2), Job("C", [9, 9, 9], 4)]
    padded = serve_statically(engine, jobs, batch_size=2)
    lenient = serve_statically(engine, jobs, batch_size=2, pad=False)
    continuous = serve_continuously(engine, jobs)
    assert padded.token_ids == lenient.token_ids == continuous.token_ids
    assert {name: len(ids) for name, ids in continuous.token_ids.items()} == {"A": 7, "B": 2, "C": 4}
    # Static: A and B end with A, at step 7; then C alone. Continuous: C joins when B is done after step 2.
    assert padded.done_step == lenient.done_step == {"A": 7, "B": 7, "C": 11}
    assert padded.written_step == {"A": 7, "B": 2, "C": 11}
    assert continuous.done_step == {"A": 7, "B": 2, "C": 6}
    assert continuous.idle_share(2) == pytest.approx(1 - 13 / 14)
    # Only the padded rows go on computing after their end.
    computed = lambda served: sum(sum(event["tokens"].values()) for event in served.events)  # noqa: E731
    assert computed(padded) > computed(lenient)
    engine.core.block_manager.check_integrity()
