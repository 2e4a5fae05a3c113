"""The runner that replays decode steps: its logic, with a recording that is repeated in Python.

What a CUDA graph adds (addresses frozen into a recording) only a GPU can show; there the last test uses real ones.
"""

import dataclasses
import gc
import itertools
import random
import tomllib
import warnings
import weakref
from types import SimpleNamespace

import pytest
import torch

from labkit.paths import ROOT
from phase5_real_gpu.kernels.triton_setup import HAS_TRITON

if not HAS_TRITON:
    pytest.skip("needs Triton", allow_module_level=True)

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedKVCache
from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.sharing import SwapSpace
from phase4_scheduler.assembly import build
from phase4_scheduler.assembly.feature import find_features, mixed
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.engine import LLMEngine
from phase4_scheduler.engine.model_runner import ModelRunner, StepBatch
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import Scheduled
from phase4_scheduler.server.engine_process import warm_up
from phase5_real_gpu.fused.runner import FusedRunner
from phase5_real_gpu.kernels import gpu_runner
from phase5_real_gpu.kernels.gpu_runner import (
    CUDAGraphRecorder,
    DecodeInputs,
    GPURunner,
    Recording,
    bucket_sizes,
    repeat_in_python,
)
from phase5_real_gpu.kernels.triton_kv_cache import TritonPagedKVCache

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
NUM_BLOCKS, SIZE = 60, 4


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request, lab):
    """Random; both ways of saying where a token stands."""
    biased = request.param == "gpt2"
    shape = (1, 1, 16, 1) if biased else (2, 1, 16, 2)  # small: the interpreter is slow
    config = lab.model_config(*shape, family=request.param, attention_bias=biased, mlp_bias=biased)
    model = Transformer.random(config, device=lab.device)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter *= 10
    return model


class Counting:
    """A recorder that counts."""

    def __init__(self):
        self.recorded = self.replayed = 0

    def __call__(self, step):
        self.recorded += 1
        recording = repeat_in_python(step)
        replay = recording.replay

        def counted():
            self.replayed += 1
            return replay()

        recording.replay = counted
        return recording


class World:
    """Requests over a cache, and two runners on the same requests, each with a cache of its own."""

    def __init__(self, lab, model, max_num_seqs=16, cut_for=1):
        self.lab = lab
        self.counter = Counting()
        self.caches = [
            TritonPagedKVCache(model.config, NUM_BLOCKS, SIZE, device=model.device),
            PagedKVCache(model.config, NUM_BLOCKS, SIZE, device=model.device, use_kernel=False),
        ]
        self.caches[0].slots_of_card = cut_for
        for cache in self.caches:
            cache.storage.data.fill_(float("nan"))
        self.runner = GPURunner(model, self.caches[0], max_num_seqs, 128, self.counter)
        self.reference = ModelRunner(model, self.caches[1])
        self.manager = BlockManager(NUM_BLOCKS, SIZE, enable_prefix_caching=False)
        self.rng = random.Random(0)
        self.requests = []
        self.done = {}

    def add(self, length):
        request = Request(f"r{len(self.requests)}", [self.rng.randrange(97) for _ in range(length)], GREEDY)
        self.requests.append(request)
        self.done[request.request_id] = 0
        return request

    def step(self, parts):
        """parts: (request, tokens). Both runners compute them; returns both hidden states."""
        scheduled = []
        for request, n in parts:
            first = self.done[request.request_id]
            while len(request.token_ids) < first + n:
                request.token_ids.append(self.rng.randrange(97))
            assert self.manager.allocate(request.block_table, request.token_ids, first + n)
            scheduled.append(Scheduled(request, n, first))
            self.done[request.request_id] = first + n
        return self.execute(scheduled)

    def execute(self, scheduled):
        batch = StepBatch.build(scheduled, SIZE)
        return self.runner.execute(batch).clone(), self.reference.execute(batch)

    def check(self, parts):
        got, wanted = self.step(parts)
        assert got.shape == wanted.shape
        self.lab.assert_near(got, wanted, 1e-4)

    def begin(self, *lengths):
        """Requests with prompts of these lengths, computed in one step."""
        requests = [self.add(n) for n in lengths]
        self.check([(r, len(r.token_ids)) for r in requests])
        return requests

    def decode(self, *requests):
        self.check([(r, 1) for r in requests])


def test_decode_steps_of_every_batch_size(lab, model):
    """Rows of padding belong to no request: 3, 5 and 9 requests in recordings of 4, 8 and 16."""
    world = World(lab, model)
    requests = world.begin(*range(3, 12))
    assert world.counter.recorded == 0  # a step with prompts is not recorded
    for n in (1, 2, 3, 4, 5, 8, 9, 3, 1):
        world.decode(*requests[:n])
    assert {bucket for bucket, _ in world.runner.recordings} == {1, 2, 4, 8, 16}
    assert world.counter.recorded == 5 and world.counter.replayed == 9


def test_padding_changes_no_request(lab, model):
    """The same requests alone and among others: the same hidden states; and nothing is stored for padding."""
    world = World(lab, model)
    a, b, c = world.begin(5, 9, 2)
    world.decode(a, b, c)  # padded to 4
    untouched = [x for x in range(NUM_BLOCKS) if all(x not in r.block_table.block_ids for r in (a, b, c))]
    assert 0 in untouched  # the null block, where a row of padding would write
    assert world.caches[0].storage.data[:, :, untouched].isnan().all()


def test_mixed_steps_go_round_the_recordings(lab, model):
    world = World(lab, model)
    a, b = world.begin(5, 9)
    world.decode(a, b)
    c = world.add(7)
    world.check([(a, 1), (c, 7), (b, 1)])  # in between, the cache's own step is another one
    assert (world.counter.recorded, world.counter.replayed) == (1, 1)
    world.decode(b, a)  # in another order
    world.decode(c, b)  # with another request in the same row
    assert (world.counter.recorded, world.counter.replayed) == (1, 3)
    world.decode(c)
    world.decode(a, b)  # the first recording again, after another one
    assert (world.counter.recorded, world.counter.replayed) == (2, 5)


def test_tables_that_grow_shrink_and_change_hands(lab, model):
    """A row of the recorded tables serves a long request, then a short one, then a longer one."""
    world = World(lab, model)
    long, short, other = (world.begin(n)[0] for n in (50, 3, 20))
    for r in (long, short, other, short):
        for _ in range(SIZE - 1):  # over the end of a block, some of them
            world.decode(r)
    assert world.counter.recorded == 1
    # A request leaves; its blocks go to another one in another order.
    world.manager.free(long.block_table)
    (new,) = world.begin(30)
    world.decode(new)


def test_a_request_moved_to_other_blocks(lab, model):
    """As after a swap: as many blocks as before, but others."""
    world = World(lab, model)
    (a,) = world.begin(10)
    world.decode(a)
    copies = []
    for place in range(len(a.block_table.blocks)):
        old = a.block_table.block_ids[place]
        block = world.manager.allocator.blocks[NUM_BLOCKS - 1 - place]
        assert block.block_id not in a.block_table.block_ids
        copies.append(("copy", old, block.block_id))
        a.block_table.block_ids[place] = block.block_id
    for cache in world.caches:
        SwapSpace(cache.storage).apply(copies)
        cache.storage.data[:, :, [old for _, old, _ in copies]] = float("nan")
    a.token_ids.append(7)
    lab.assert_near(*world.execute([Scheduled(a, 1, 11)]), 1e-4)


def test_long_contexts_have_recordings_of_their_own(lab, model):
    """How many splits a context has is in the recording; where they are cut is not."""
    world = World(lab, model, cut_for=16)
    world.caches[0].tile = 8  # so that a context of sixty tokens is one to cut
    a, b = world.begin(60, 6)
    for requests in ([b], [a], [b], [a, b], [a, b]):
        world.decode(*requests)
    splits = {splits for bucket, splits in world.runner.recordings if bucket == 1}
    assert len(splits) == 2 and 1 in splits and all(n & (n - 1) == 0 for n in splits)


def test_what_a_recording_reads_stays_where_it_is(lab, model):
    """A CUDA graph knows addresses and keeps no tensor alive. The runner that holds the recording has to: memory
    that was given back would be reused by the next replay."""
    world = World(lab, model, cut_for=16)
    world.caches[0].tile = 8
    seen = []

    def record(step):  # like a graph, it runs the step once and forgets it
        result = step()
        plan = world.caches[0].step.decodes.plan
        seen[:] = [weakref.ref(t) for t in (plan.partial_out, plan.partial_lse)]
        return Recording(lambda: None, result)

    world.runner = GPURunner(model, world.caches[0], 16, 128, record)
    (a,) = world.begin(60)
    world.step([(a, 1)])
    assert world.runner.recordings and seen
    world.check([(a, 2)])  # the cache has another step now
    gc.collect()
    assert all(tensor() is not None for tensor in seen)


def test_all_steps_share_the_memory_of_their_splits(lab, model):
    """135 MB for each shape of 64 requests with 128 splits would otherwise be kept."""
    world = World(lab, model, cut_for=16)
    world.caches[0].tile = 8
    GPURunner(model, world.caches[0], 16, 1024)
    shared = world.caches[0].partials
    assert shared.nbytes == 4 * 16 * model.config.num_heads * 16 * (16 + 1)  # 1,024 tokens are 16 tiles
    a, b, c = world.begin(60, 33, 6)
    for requests in ([a], [a, b], [a, b, c], [c]):
        world.decode(*requests)
    plans = [step.decodes.plan for step in world.runner._recorded]
    assert len({plan.num_splits for plan in plans}) > 1
    for plan in plans:
        for part in (plan.partial_out, plan.partial_lse) if plan.num_splits > 1 else ():
            assert part.untyped_storage().data_ptr() == shared.untyped_storage().data_ptr()


def test_the_memory_of_splits_is_taken_from_the_cache(lab, monkeypatch):
    """It is there when the runner is built, so no step lacks it, and fewer blocks are left for keys and values."""
    config = lab.model_config(4, 2, 64, max_context=4096)
    model = SimpleNamespace(config=config, dtype=torch.float16, device=torch.device("cuda"))
    settings = EngineConfig(max_num_seqs=8, max_model_len=4096)
    needed = GPURunner.work_bytes(model, settings)
    assert needed == 4 * 8 * 4 * 64 * (64 + 1)  # 4,096 tokens are 64 tiles
    assert GPURunner.work_bytes(model, EngineConfig(max_num_seqs=8, max_model_len=256)) == 0
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10**7, 10**7))
    of_block = 2 * 2 * 2 * 2 * 64 * 16
    found = [build.default_num_blocks(model, settings)]
    monkeypatch.setattr(GPURunner, "work_bytes", lambda *args: 0)
    found.append(build.default_num_blocks(model, settings))
    assert found == [int((8e6 - needed) // of_block) + 1, int(8e6 // of_block) + 1]


def test_a_plan_without_memory_costs_the_recordings_alone(lab, model, monkeypatch):
    """It failed outside the attempt to record, so every later step failed as well, and each request ran alone."""
    world = World(lab, model)
    a, b = world.begin(5, 9)
    plan, calls = world.caches[0].plan, []

    def short_of_memory(*args):
        calls.append(args)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plan(*args)

    monkeypatch.setattr(world.caches[0], "plan", short_of_memory)
    with pytest.warns(UserWarning, match="out of memory.*going on without CUDA graphs"):
        world.decode(a, b)
    assert world.runner._record is None
    world.decode(b)


def test_more_requests_than_the_largest_bucket(lab, model):
    world = World(lab, model, max_num_seqs=2)
    requests = world.begin(3, 3, 3)
    world.decode(*requests)
    assert world.counter.recorded == 0


def test_without_recordings(lab, model):
    world = World(lab, model)
    world.runner = GPURunner(model, world.caches[0], 16, 128, record=None)
    (a,) = world.begin(5)
    world.decode(a)
    assert not world.runner.recordings


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 8, 63, 64, 65, 96, 100, 256, 257])
def test_bucket_sizes(most):
    sizes = bucket_sizes(most)
    assert sizes == sorted(set(sizes)) and sizes[0] == 1 and sizes[-1] == most
    for n in range(1, most + 1):
        bucket = next(s for s in sizes if s >= n)
        assert bucket < 2 * n or n == 1
        assert bucket - n < (8 if n <= 64 else 32)


def test_inputs_are_where_a_recording_expects_them(lab):
    """Every array begins at 16 bytes, and no step moves one."""
    inputs = DecodeInputs(5, 7, torch.device(lab.device))
    request = Request("r", list(range(10)), GREEDY)
    request.block_table.block_ids = [3, 1, 2]
    where = [t.data_ptr() for t in (*(inputs.part(i) for i in range(4)), inputs.split_tokens, inputs.tables)]
    assert all(p % 16 == 0 for p in where)
    inputs.fill(StepBatch.build([Scheduled(request, 1, 9), Scheduled(request, 1, 4)], 4), 64)
    tokens, positions, slots, lens = (inputs.part(i).tolist() for i in range(4))
    assert tokens == [9, 4, 0, 0, 0] and positions == [9, 4, 0, 0, 0]
    assert slots == [2 * 4 + 1, 1 * 4, -1, -1, -1] and lens == [10, 5, 0, 0, 0]
    assert inputs.split_tokens.tolist() == [64]
    assert inputs.tables[:2, :3].tolist() == [[3, 1, 2]] * 2
    inputs.fill(StepBatch.build([Scheduled(request, 1, 2)], 4), 128)
    assert inputs.part(3).tolist() == [3, 0, 0, 0, 0] and inputs.part(2).tolist() == [14, -1, -1, -1, -1]
    again = [t.data_ptr() for t in (*(inputs.part(i) for i in range(4)), inputs.split_tokens, inputs.tables)]
    assert again == where


# ---------------------------------------------------------------------- behind an engine


def engine_with(model, record, **config):
    config = EngineConfig(max_num_seqs=8, num_blocks=40, block_size=4, **config)
    cache = TritonPagedKVCache(model.config, 40, 4, model.dtype, model.device)
    engine = LLMEngine(model, None, config, kv_cache=cache)
    kind = mixed(GPURunner, "runner", [f for f in find_features({}) if f.is_on(model, config, [])])
    engine.core.runner = kind(model, cache, 8, 128, record)
    return engine


def test_after_the_warm_up_no_step_is_recorded(model):
    """Every bucket and number of splits is recorded before the first request, and no block is taken."""
    counter, lines = Counting(), []
    engine = engine_with(model, counter)
    cache = engine.core.runner.kv_cache
    cache.slots_of_card, cache.tile = 16, 8
    cache.storage.data.fill_(float("nan"))
    with warnings.catch_warnings(action="error"):
        warm_up(engine.core, lines.append)
    assert engine.core.block_manager.usage == 0
    assert set(engine.core.runner.recordings) == set(itertools.product([1, 2, 4, 8], [1, 2, 4, 8, 16]))
    assert counter.recorded == len(lines) - 1 == 20
    assert lines[-1].startswith(f"CUDA graph {counter.recorded} of {counter.recorded}: 1 requests, 1 splits")
    recorded = counter.recorded
    rng = random.Random(3)
    prompts = [[rng.randrange(97) for _ in range(n)] for n in (3, 90, 1, 2, 5)]
    engine.generate(prompts, [dataclasses.replace(GREEDY, max_tokens=m) for m in (6, 3, 9, 2, 5)])
    assert counter.recorded == recorded and counter.replayed > 5


def test_a_recording_that_fails_in_the_warm_up_leaves_the_engine_running(model):
    def refuse(step):
        raise RuntimeError("no graphs here")

    engine = engine_with(model, refuse)
    with pytest.warns(UserWarning, match="no graphs here.*going on without CUDA graphs"):
        warm_up(engine.core)
    assert engine.core.runner._record is None and engine.generate([[1, 2, 3]], GREEDY)[0].token_ids


@pytest.mark.parametrize("config", [{}, dict(max_num_batched_tokens=9)], ids=str)
def test_the_engine_writes_the_same_tokens(lab, model, config):
    rng = random.Random(3)
    prompts = [[rng.randrange(97) for _ in range(n)] for n in (3, 11, 1, 2)]
    params = [dataclasses.replace(GREEDY, max_tokens=m) for m in (6, 3, 5, 6)]
    params[3] = dataclasses.replace(GREEDY, temperature=0.9, seed=1, n=2, max_tokens=4)
    cpu = LLMEngine(
        model, None, EngineConfig(max_num_seqs=8, num_blocks=40, block_size=4, **config),
        kv_cache=PagedKVCache(model.config, 40, 4, device=model.device),
    )  # fmt: skip
    counter = Counting()
    engine = engine_with(model, counter, **config)
    wanted, got = cpu.generate(prompts, params), engine.generate(prompts, params)
    assert [[c.token_ids for c in o.outputs] for o in got] == [
        [c.token_ids for c in o.outputs] for o in wanted
    ]
    assert counter.replayed > counter.recorded > 0


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


def test_a_recording_that_fails_leaves_the_engine_running(model):
    prompts = [[1, 2, 3], [4, 5]]

    def refuse(step):
        raise RuntimeError("no graphs here")

    engine = engine_with(model, refuse)
    with pytest.warns(UserWarning, match="no graphs here.*going on without CUDA graphs"):
        got = [o.token_ids for o in engine.generate(prompts, GREEDY)]
    assert engine.core.runner._record is None
    assert got == [o.token_ids for o in engine_with(model, repeat_in_python).generate(prompts, GREEDY)]


def test_the_engine_takes_this_runner_on_a_gpu(lab, model, monkeypatch):
    """`GPURunner.create` is what the engine calls for a device "cuda"."""

    def create(model, **more):
        return GPURunner.create(
            model, EngineConfig(block_size=4, max_num_seqs=8, max_model_len=64, **more), 20
        )

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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: CUDA graphs")
def test_cuda_graphs(lab, model):
    world = World(lab, model, cut_for=264)
    world.runner = GPURunner(model, world.caches[0], 16, 128, CUDAGraphRecorder())
    requests = world.begin(*range(3, 38, 5))
    for n in (1, 3, 7, 2, 7, 1):
        for _ in range(3):
            world.decode(*requests[:n])
    world.check([(requests[0], 5), (requests[1], 1)])
    for n in (7, 3):
        world.decode(*requests[:n])
    assert world.runner.recordings


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: CUDA graphs")
def test_cuda_graphs_with_contexts_in_splits(lab, model):
    """The merging kernel, its memory and the length of a split are in the recording; the lengths are not."""
    world = World(lab, model, cut_for=264)
    world.caches[0].tile = 8
    world.runner = GPURunner(model, world.caches[0], 16, 128, CUDAGraphRecorder())
    a, b = world.begin(60, 6)
    for requests in ([b], [a], [b], [a, b], [a], [a, b]):
        world.decode(*requests)
    assert {splits for _, splits in world.runner.recordings} == {1, 8}


def test_the_package_names_this_runner_for_cuda():
    """What `make_runner` finds on a machine with a GPU: an entry point, not a name in its code."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    runners = {"cuda": f"{FusedRunner.__module__}:{FusedRunner.__name__}"}
    assert project["entry-points"][build.RUNNERS].items() >= runners.items()


def test_an_installed_runner_serves_its_device(model, monkeypatch):
    on_gpu = SimpleNamespace(config=model.config, dtype=torch.float32, device=torch.device("meta"))
    asked = []

    class Installed(ModelRunner):
        @classmethod
        def create(cls, *args):
            asked.append(args)
            return SimpleNamespace(kv_cache=SimpleNamespace(num_blocks=40, block_size=4))

    entry = SimpleNamespace(load=lambda: Installed)
    monkeypatch.setattr(build, "entry_points", lambda group, name: [entry])
    config = EngineConfig(max_num_seqs=8, num_blocks=40, block_size=4, enforce_eager=True)
    assert build.make_runner(on_gpu, config, 40).kv_cache.num_blocks == 40
    assert asked == [(on_gpu, config, 40, None)]
    monkeypatch.setattr(build, "entry_points", lambda group, name: [])
    with pytest.warns(UserWarning, match="no runner for 'meta' is installed"):
        assert type(build.make_runner(on_gpu, config, 40)) is ModelRunner
