"""The runner that replays decode steps, behind an engine: the tokens of an engine that gathers keys with torch.

Without a GPU a recording is repeated in Python. What a CUDA graph adds (addresses frozen into a recording) only a GPU can show.
"""

import dataclasses
import itertools
import random
import warnings
from types import SimpleNamespace

import pytest
import torch

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedKVCache
from phase4_scheduler.assembly import build
from phase4_scheduler.assembly.feature import find_features, mixed
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.engine import LLMEngine
from phase4_scheduler.engine.model_runner import ModelRunner
from phase4_scheduler.server.engine_process import warm_up
from phase5_real_gpu.fused.runner import GRAPH_BYTES, FusedRunner
from phase5_real_gpu.kernels import gpu_runner
from phase5_real_gpu.kernels.gpu_runner import CUDAGraphRecorder, GPURunner, Recording
from phase5_real_gpu.kernels.triton_kv_cache import TritonPagedKVCache
from tests.phase5_real_gpu.conftest import DTYPES, repeat_in_python
from tests.properties import contrasted

pytest.importorskip("triton")

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
NUM_BLOCKS, SIZE = 50, 4
SWAPPING = dict(num_blocks=20, preemption="swap", num_swap_blocks=40)  # blocks move out and in again
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
RECORDERS = [  # makers, because a pool dies with its graphs. `lab first-contact` selects the second by its id
    pytest.param(lambda: repeat_in_python, id="in_Python"),
    pytest.param(CUDAGraphRecorder, id="CUDA_graphs", marks=NEEDS_GPU),
]


@pytest.fixture(scope="module")
def model(request, lab):
    """Random; both ways of saying where a token stands."""
    family = getattr(request, "param", "llama")
    biased = family == "gpt2"
    shape = (1, 1, 16, 1) if biased else (2, 1, 16, 2)  # small: the interpreter is slow
    config = lab.model_config(*shape, family=family, attention_bias=biased, mlp_bias=biased)
    return contrasted(Transformer.random(config, device=lab.device))


class Counting:
    """A recorder that counts."""

    def __init__(self, record=repeat_in_python):
        self.record, self.recorded, self.replayed = record, 0, 0

    def __call__(self, step):
        self.recorded += 1
        recording = self.record(step)
        return Recording(lambda: self.count(recording.replay), recording.result)

    def count(self, replay):
        self.replayed += 1
        return replay()


def engine_with(model, record, cut_for=1, longest=128, num_blocks=NUM_BLOCKS, **settings):
    """cut_for: programs that the card runs at a time, by which contexts are cut into splits."""
    config = EngineConfig(max_num_seqs=8, num_blocks=num_blocks, block_size=SIZE)
    cache = TritonPagedKVCache(model.config, num_blocks, SIZE, model.dtype, model.device)
    cache.slots_of_card, cache.tile = cut_for, 8 if cut_for > 1 else cache.tile
    cache.storage.data.fill_(float("nan"))
    engine = LLMEngine(model, None, config, kv_cache=cache, **settings)
    kind = mixed(GPURunner, "runner", [f for f in find_features(settings) if f.is_on(model, config, [])])
    engine.core.runner = kind(model, cache, dataclasses.replace(config, max_model_len=longest), record)
    engine.core.runner.compiler = engine.core.compiler  # the core gave it to the first runner
    return engine


def plain_engine(model):
    cache = PagedKVCache(model.config, NUM_BLOCKS, SIZE, device=model.device, use_kernel=False)
    config = EngineConfig(max_num_seqs=8, num_blocks=NUM_BLOCKS, block_size=SIZE)
    return LLMEngine(model, None, config, kv_cache=cache)


def serve(engine):
    """Requests of all lengths come and go. Their tokens."""
    rng, tokens, number = random.Random(5), {}, 0
    while number < 9 or engine.has_unfinished_requests:
        while number < 9 and rng.random() < 0.7:
            prompt = [rng.randrange(97) for _ in range((1, 3, 5, 60, 9)[number % 5])]
            params = dataclasses.replace(GREEDY, max_tokens=rng.randint(3, 9))
            if number % 4 == 3:
                params = dataclasses.replace(params, temperature=0.9, seed=number)
            tokens[str(number)] = []
            engine.add_request(str(number), prompt, params)
            number += 1
        for output in engine.step():
            tokens[output.request_id] += output.token_ids
    return tokens


@pytest.mark.parametrize("make_recorder", RECORDERS)
@pytest.mark.parametrize(
    ("model", "cut_for", "settings"),
    [("gpt2", 1, SWAPPING), ("llama", 16, {"async_scheduling": True})],
    indirect=["model"],
)
def test_the_engine_writes_the_same_tokens(model, make_recorder, cut_for, settings):
    """Batches of all sizes in recordings of 1, 2, 4 and 8, tables that grow, shrink and change hands, mixed steps in between."""
    wanted, counter = serve(plain_engine(model)), Counting(make_recorder())
    engine = engine_with(model, counter, cut_for, longest=1024, **settings)
    assert serve(engine) == wanted and len({tuple(t) for t in wanted.values()}) == len(wanted)
    assert (engine.core.stats.num_preemptions > 0) == (settings is SWAPPING)
    runner = engine.core.runner
    assert counter.replayed > counter.recorded == len(runner.recordings)
    assert {bucket for bucket, _ in runner.recordings} == {1, 2, 4, 8}
    splits = {splits for _, splits in runner.recordings}
    assert all(n & (n - 1) == 0 for n in splits) and (len(splits) > 1) == (cut_for > 1)
    assert runner.kv_cache.storage.data[:, :, 0].isnan().all()  # the null block, where padding would write
    shared = runner.kv_cache.partials.untyped_storage().data_ptr()
    plans = [step.decodes.plan for step in runner._recorded]  # all share the memory of their splits
    assert all(p.num_splits == 1 or p.partial_out.untyped_storage().data_ptr() == shared for p in plans)


@pytest.mark.parametrize("make_recorder", RECORDERS)
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.itemsize == 2])
def test_a_recorded_step_in_16_bits_gives_the_hidden_states_of_an_eager_one(lab, make_recorder, dtype):
    """As many requests as a bucket holds, so that both multiply the same shapes."""
    model = contrasted(Transformer.random(lab.model_config(2, 1, 16), dtype=dtype, device=lab.device))
    hidden = {}
    for record in (make_recorder(), None):
        engine, steps = engine_with(model, record), hidden.setdefault(record is None, [])
        execute = engine.core.runner.execute
        engine.core.runner.execute = lambda batch: steps.append(execute(batch).clone()) or steps[-1]  # noqa: B023
        engine.generate([[1, 2, 3], [4, 5]], GREEDY)
        assert bool(engine.core.runner.recordings) == (record is not None)
    for recorded, eager in zip(hidden[False], hidden[True], strict=True):
        lab.assert_near(recorded, eager, lab.tolerance[dtype])


@pytest.mark.parametrize(("holder", "name"), [(gpu_runner, "DecodeInputs"), (TritonPagedKVCache, "plan")])
def test_memory_that_is_lacking_costs_the_recordings_alone(model, monkeypatch, holder, name):
    real, lacking = getattr(holder, name), [torch.OutOfMemoryError("CUDA out of memory")]

    def no_memory_at_first(*args):
        if lacking:
            raise lacking.pop()
        return real(*args)

    prompts = [[1, 2], [2, 3, 4]]  # a prompt of a single token would need a plan of its own
    monkeypatch.setattr(holder, name, no_memory_at_first)
    with pytest.warns(UserWarning, match="out of memory.*going on without further CUDA graphs"):
        engine = engine_with(model, repeat_in_python)
        tokens = [o.token_ids for o in engine.generate(prompts, GREEDY)]
    assert engine.core.runner._record is None and not engine.core.runner.recordings
    assert tokens == [o.token_ids for o in plain_engine(model).generate(prompts, GREEDY)]


def test_the_memory_of_a_step_is_taken_from_the_cache(lab, monkeypatch):
    """Splits, activations, logits and recordings; fewer blocks are left for keys and values."""
    config = lab.model_config(4, 2, 64, max_context=4096)
    model = SimpleNamespace(config=config, dtype=torch.float16, device=torch.device("cuda"))
    settings = EngineConfig(max_num_seqs=8, max_model_len=4096)
    splits = GPURunner.split_bytes(model, settings)
    assert splits == 4 * 8 * 4 * 64 * (64 + 1)  # 4,096 tokens are 64 tiles
    assert GPURunner.split_bytes(model, EngineConfig(max_num_seqs=8, max_model_len=256)) == 0
    needed = FusedRunner.work_bytes(model, settings)
    step = settings.max_num_batched_tokens * 2 * (2 * 32 + 512) + 4 * 4 * 8 * 97
    assert needed == splits + step + 4 * 7 * GRAPH_BYTES  # 1, 2, 4, 8 requests; 1 to 64 splits
    assert FusedRunner.work_bytes(model, dataclasses.replace(settings, enforce_eager=True)) == splits + step
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    free = int((needed + 8e6) / 0.8)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, free))
    of_block = 2 * 2 * 2 * 2 * 64 * 16
    assert build.default_num_blocks(model, settings) == int((0.8 * free - needed) // of_block) + 1


@pytest.mark.parametrize("most", [1, 3, 7, 63, 64, 65, 100, 256, 257])
def test_bucket_sizes(most):
    sizes = gpu_runner.bucket_sizes(most)
    assert sizes == sorted(set(sizes)) and sizes[0] == 1 and sizes[-1] == most
    for n in range(1, most + 1):
        bucket = next(s for s in sizes if s >= n)
        assert bucket < 2 * n or n == 1
        assert bucket - n < (8 if n <= 64 else 32)


def test_after_the_warm_up_no_step_is_recorded(model):
    """Every bucket and number of splits is recorded before the first request, and no block is taken."""
    counter, lines = Counting(), []
    engine = engine_with(model, counter, cut_for=16)
    with warnings.catch_warnings(action="error"):
        warm_up(engine.core, lines.append)
    assert engine.core.block_manager.usage == 0
    assert set(engine.core.runner.recordings) == set(itertools.product([1, 2, 4, 8], [1, 2, 4, 8, 16]))
    assert counter.recorded == len(lines) - 1 == 20
    assert lines[-1].startswith(f"CUDA graph {counter.recorded} of {counter.recorded}: 1 requests, 1 splits")
    with pytest.warns(UserWarning, match="going on without further CUDA graphs"):
        engine.core.runner.go_on_without(MemoryError())  # what is recorded is replayed all the same
    recorded = counter.recorded
    rng = random.Random(3)
    prompts = [[rng.randrange(97) for _ in range(n)] for n in (3, 90, 1, 2, 5)]
    engine.generate(prompts, [dataclasses.replace(GREEDY, max_tokens=m) for m in (6, 3, 9, 2, 5)])
    assert counter.recorded == recorded and counter.replayed > 5


def test_a_request_that_survives_a_failed_step_gets_its_own_tokens(model):
    """After a step that fails each request is computed alone, in the same recording: a result that is not copied is
    overwritten by the next one's."""
    rng = random.Random(4)
    prompts = [[rng.randrange(97) for _ in range(n)] for n in (3, 5, 8)]

    def tokens(fail_at):
        engine = engine_with(model, repeat_in_python)
        execute = engine.core.runner.execute

        def sometimes(batch):
            if len(batch.query_lens) == 3 and engine.core.num_steps == fail_at:
                raise RuntimeError("not today")
            return execute(batch)

        engine.core.runner.execute = sometimes
        return [o.token_ids for o in engine.generate(prompts, GREEDY)]

    wanted = tokens(fail_at=None)
    with pytest.warns(UserWarning, match="a step of 3 requests failed .*not today"):
        assert tokens(fail_at=3) == wanted
    assert len({tuple(t) for t in wanted}) == 3


def test_the_engine_takes_this_runner_on_a_gpu(lab, model, monkeypatch):
    """`GPURunner.create` is what the engine calls for a device "cuda"."""

    def create(model, **more):
        config = EngineConfig(block_size=4, max_num_seqs=8, max_model_len=64, **more)
        return GPURunner.create(model, config, 20)

    narrow = Transformer.random(lab.model_config(1, 1, 8), device=lab.device)
    with pytest.warns(UserWarning, match="head_dim 8 is out of range.*gathers keys with torch"):
        assert create(narrow) is None
    runner = create(model)
    assert isinstance(runner, GPURunner) and isinstance(runner._record, CUDAGraphRecorder)
    cache = runner.kv_cache
    assert (cache.num_blocks, cache.block_size) == (20, 4)
    assert cache.storage.data.device.type == model.device.type and cache.storage.data.dtype == model.dtype
    assert create(model, enforce_eager=True)._record is None
    monkeypatch.setattr(gpu_runner, "card_problem", lambda dtype: "Some Card has compute capability 7.0")
    with pytest.warns(UserWarning, match="capability 7.0.*gathers keys with torch"):
        assert create(model) is None
    monkeypatch.setattr(gpu_runner, "card_problem", lambda dtype: None)
    monkeypatch.setattr(gpu_runner, "INTERPRETED", True)
    on_gpu = SimpleNamespace(dtype=torch.float32, device=torch.device("cuda"))
    with pytest.warns(UserWarning, match="TRITON_INTERPRET is set.*unset it.*gathers keys with torch"):
        assert create(on_gpu) is None


def test_an_installed_runner_serves_its_device(model, monkeypatch):
    on_gpu = SimpleNamespace(config=model.config, dtype=torch.float32, device=torch.device("meta"))
    runner = SimpleNamespace(kv_cache=SimpleNamespace(num_blocks=40, block_size=4))
    installed = [SimpleNamespace(load=lambda: SimpleNamespace(create=lambda *_: runner))]
    monkeypatch.setattr(build, "entry_points", lambda group, name: installed)
    config = EngineConfig(max_num_seqs=8, num_blocks=40, block_size=4, enforce_eager=True)
    assert build.make_runner(on_gpu, config, 40) is runner
    installed.clear()
    with pytest.warns(UserWarning, match="no runner for 'meta' is installed"):
        assert type(build.make_runner(on_gpu, config, 40)) is ModelRunner
