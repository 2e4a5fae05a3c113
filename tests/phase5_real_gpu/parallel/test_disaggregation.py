"""Prefill apart from decode: the same tokens as from one engine, and no block lost."""

import itertools
import random

import pytest
import torch

from phase2_attention_kvcache.model import ModelConfig, SamplingParams, Transformer
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase5_real_gpu import disaggregation
from phase5_real_gpu.parallel import connectors
from phase5_real_gpu.parallel.block_transfer import copy_blocks
from phase5_real_gpu.parallel.disaggregated import DisaggregatedEngine
from tests.phase5_real_gpu.parallel.conftest import VOCAB_SIZE, prompts

TINY = ModelConfig(
    name="tiny", family="gpt2", num_layers=2, d_model=32, num_heads=2, num_kv_heads=2, head_dim=16, d_ff=64,
    vocab_size=VOCAB_SIZE, max_context=128, tied=True,
)  # fmt: skip
SIZE = 8  # tokens a block


class Clock:
    """Seconds as a test wants them."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(scope="module")
def model():
    """In float64, so that no two ways of adding give another token."""
    made = Transformer.random(TINY, seed=3).double()
    for parameter in made.parameters():  # larger weights: answers that depend on every token
        if parameter.ndim == 2:
            parameter.data *= 15
    return made


@pytest.fixture(scope="module")
def make(model):
    def make(num_blocks=60, **options):
        config = EngineConfig(
            num_blocks=num_blocks, block_size=SIZE, max_num_seqs=16, max_num_batched_tokens=64
        )
        return DisaggregatedEngine(model, config, **options)

    return make


def make_requests(number, seed):
    """Prompts, some of which begin alike; greedy, or with a seed."""
    rng, requests = random.Random(seed), []
    for i, prompt in enumerate(prompts(number, seed)):
        drawn = dict(temperature=0.8, seed=i) if rng.random() < 0.3 else dict(temperature=0)
        requests.append((prompt, SamplingParams(**drawn, max_tokens=rng.randrange(1, 24), ignore_eos=True)))
    return requests


@pytest.fixture(scope="module")
def alone(model):
    """What one engine answers to these requests."""

    def answers(requests):
        engine = LLMEngine(model, config=EngineConfig(num_blocks=400, block_size=SIZE))
        outputs = engine.generate(*map(list, zip(*requests, strict=True)))
        return [output.token_ids for output in outputs]

    return answers


def finish(engine, tokens):
    for _ in range(2000):
        for output in engine.step():
            tokens[output.request_id] += output.token_ids
        if not engine.requests:
            return
    raise AssertionError("it does not end")


def serve(engine, requests):
    tokens = {str(i): [] for i in range(len(requests))}
    for i, request in enumerate(requests):
        engine.add(str(i), *request)
    finish(engine, tokens)
    return list(tokens.values())


def test_same_tokens_with_preemption_aborts_and_leases_that_run_out(make, alone):
    requests, clock, rng = make_requests(60, seed=1), Clock(), random.Random(2)
    expected, aborted, tokens = alone(requests), set(), {}
    engine = make(num_blocks=26, lease_seconds=5.0, clock=clock)
    decode, connector = engine.decode, engine.decode.scheduler.connector
    waiting = [str(i) for i in range(len(requests))]
    get_finished = connector.get_finished
    # Some loads take longer than a step.
    connector.get_finished = lambda: get_finished() if rng.random() < 0.6 else ((), ())
    while waiting or engine.requests:
        if waiting and rng.random() < 0.9:
            name = waiting.pop(0)
            tokens[name] = []
            engine.add(name, *requests[int(name)])
        for output in engine.step():
            tokens[output.request_id] += output.token_ids
        clock.now += rng.choice([0.1] * 7 + [6.0])
        if rng.random() < 0.1 and engine.requests:
            aborted.add(name := rng.choice(sorted(engine.requests)))
            engine.abort(name)
    for _ in range(5):
        clock.now += 6.0
        engine.step()
    for i, answer in enumerate(expected):
        assert str(i) in aborted or tokens[str(i)] == answer, i
    for core in (engine.prefill, decode):
        core.block_manager.check_integrity()
        assert core.block_manager.num_free_blocks == core.block_manager.num_blocks - 1
    # It was what it is meant to be.
    leases = engine.prefill.scheduler.connector
    counts = (len(aborted), decode.stats.num_preemptions, leases.num_expired, connector.num_blocks_loaded)
    assert min(counts) > 0, counts


def test_nothing_is_left_on_the_prefill_side(make, alone):
    requests, clock = make_requests(12, seed=5), Clock()
    engine = make(clock=clock)
    assert serve(engine, requests) == alone(requests)
    engine.add("late", *requests[0])
    engine.step()
    engine.abort("late")  # while its blocks are kept for it
    for _ in range(3):
        clock.now += 40
        engine.step()
    for core in (engine.prefill, engine.decode):
        core.block_manager.check_integrity()
        assert core.block_manager.num_free_blocks == core.block_manager.num_blocks - 1


def test_what_is_cached_is_not_read_again(make, alone):
    beginning = list(range(20))  # two full blocks, and four tokens
    requests = [(beginning + [40 + i] * n, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
                for i, n in enumerate((5, 9, 12, 12))]  # fmt: skip
    engine, read = make(), []
    for request, answer in zip(requests, alone(requests), strict=True):
        assert serve(engine, [request]) == [answer]
        read.append(engine.decode.scheduler.connector.num_blocks_loaded - sum(read))
    assert read == [4, 2, 2, 2]  # of 4, 4, 4 and 4 blocks: the first two are there


def test_blocks_that_cannot_be_read_are_computed(make, alone, monkeypatch):
    requests, engine, calls = make_requests(6, seed=4), make(), itertools.count()

    def sometimes_gone(source, *rest):
        return copy_blocks(source[:, :, :0] if next(calls) % 2 else source, *rest)

    monkeypatch.setattr(connectors, "copy_blocks", sometimes_gone)
    with pytest.warns(UserWarning, match="its prompts are computed here"):
        assert serve(engine, requests) == alone(requests)
    loads = engine.decode.scheduler.connector
    assert loads.num_failed == 3 and loads.num_blocks_loaded > 0


def test_blocks_read_after_the_end_of_the_lease_do_not_count():
    clock, source, target = Clock(), torch.ones(2, 1, 40, 2, 1, 1), torch.zeros(2, 1, 40, 2, 1, 1)

    def reads_take_a_second():
        clock.now += 1
        return clock.now

    pairs = [(1, 9), (2, 10), (5, 3), (7, 4), (8, 6)]
    assert copy_blocks(source, target, pairs, 4.0, reads_take_a_second) == {4, 6}
    clock.now = 0
    assert copy_blocks(source, target, pairs, 9.0, reads_take_a_second) == set()
    assert target.sum() == 5 * 2 * 2


@pytest.mark.proof
def test_script(run_script):
    report = run_script(disaggregation, figures=["disaggregation_map"])
    assert {"pd-same-tokens", "pd-bytes", "pd-contention"} <= report["claims"].keys()
    assert report["results"]["blocks_read"][0] > max(report["results"]["blocks_read"][1:])
