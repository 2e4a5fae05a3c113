"""What a step asks of the host and of the card: a model on the meta device, where tensors have a shape and no memory, and each
operator is seen.

No operator mixes tensors of the device with tensors of the host, none computes on the host, and the host waits once, for the
sampled tokens. The kernels of a decode step of Llama-3 8B are counted: one per operator that is no mere view, and one per
launch of Triton. It runs in a process in which Triton does not interpret; launches are watched and not made.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.paths import ROOT
from phase1_tokens_embeddings.weights import SHAPES
from phase2_attention_kvcache.model import ModelConfig, SamplingParams, Transformer
from phase2_attention_kvcache.model.checkpoint import finish_loading
from phase2_attention_kvcache.quantization.quantized_linear import quantize_model
from phase3_paged_attention.sharing import QuantizedKVStorage
from phase4_scheduler.assembly.feature import mixed
from phase4_scheduler.engine import EngineConfig, Request, SchedulerOutput, StepBatch
from phase4_scheduler.features.async_scheduling import AsyncScheduling, ScheduledAhead
from phase5_real_gpu.fused.runner import FusedRunner
from phase5_real_gpu.kernels import triton_setup
from phase5_real_gpu.kernels.gpu_runner import GPURunner, Recording
from phase5_real_gpu.parallel import Place, ShardedTransformer

pytest.importorskip("triton")

SMALL = ModelConfig(
    name="small", family="llama", vocab_size=512, d_model=128, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32,
    d_ff=256, max_context=512, tied=False, attention_bias=False, mlp_bias=False,
)  # fmt: skip
ON_THE_HOST = {
    "alias", "as_strided", "contiguous", "copy_", "detach", "detach_", "empty", "fill_", "lift_fresh", "rand", "resolve_conj",
    "resolve_neg", "select", "slice", "split", "to", "unsqueeze", "view", "zeros", "zeros_like",
}  # fmt: skip
"""Lists become tensors there, and are brought to the device. It computes nothing."""
KINDS = ("16 bits", "fp8 cache", "int4 weights", "int8 weights", "a rank")


class OnGPU(TorchFunctionMode):
    """Modules that look where a tensor is take the GPU's way."""

    norms = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function == torch.Tensor.is_cuda.__get__:
            return True
        if function is F.rms_norm:  # one kernel on a GPU, put together from several elsewhere
            self.norms += 1
            return args[0].as_strided(args[0].shape, args[0].stride())
        return function(*args, **kwargs or {})


class Watch(TorchDispatchMode):
    """
    Attributes:
        waits: times that the host waited. mistakes: operators that mix devices, or compute on the host.
        kernels: operators on the device that are not mere views.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.mistakes, self.kernels = 0, [], 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = operator.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        devices = {x.device.type for x in tensors if x.ndim or x.device.type == "meta"}
        copies = name in ("to", "_to_copy", "copy_")
        target = next((x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.device)), None)
        target = target or (tensors[0].device if tensors else None)
        if name in ("item", "_local_scalar_dense", "is_nonzero") and devices == {"meta"}:
            self.waits += 1
            return 0
        if copies and "meta" in devices and target.type == "cpu":
            self.waits += 1
            return args[0] if name == "copy_" else torch.zeros(args[0].shape, dtype=args[0].dtype)
        is_upload = copies and target.type == "meta"
        if (len(devices) > 1 and not is_upload) or (
            devices == {"cpu"} and not is_upload and name not in ON_THE_HOST
        ):
            self.mistakes.append(name)
        made = operator(*args, **kwargs)
        # `to` and `reshape` are views only where they have nothing to change.
        first = made[0] if isinstance(made, (list, tuple)) else made
        is_view = operator.is_view and first.untyped_storage()._cdata == args[0].untyped_storage()._cdata
        self.kernels += devices == {"meta"} and not is_view and not name.startswith("empty")
        return made


def make_runner(kind):
    """A runner on the meta device, with asynchronous steps; its steps are "recorded" once and repeated."""
    with torch.device("meta"):
        model = Transformer(SMALL)
        if kind == "a rank":
            whole = lambda x: x  # noqa: E731  what the others bring is of the same shape
            place = Place(0, 2, 1)
            calls = SimpleNamespace(place=place, all_reduce=whole, gather=lambda x: [x, x])
            model = ShardedTransformer(SMALL, calls)
    model = finish_loading(model.to(torch.bfloat16))
    if kind.endswith("weights"):
        with torch.device("cpu"):
            model = Transformer.random(SMALL).to(torch.bfloat16)
            quantize_model(model, kind.split()[0])
        model = finish_loading(model.to("meta"))
    config = EngineConfig(num_blocks=64, max_num_seqs=8, max_model_len=512)
    storage = None
    if kind == "fp8 cache":
        storage = QuantizedKVStorage(model.config, 64, 16, torch.bfloat16, "meta", kv_cache_dtype="fp8")
    runner = mixed(FusedRunner, "runner", [AsyncScheduling()]).create(model, config, 64, storage)
    runner._record = lambda step: Recording(step, step())
    runner.kv_cache.slots_of_card = 132
    return runner


def scheduled(name, computed, tokens, known, params):
    request = Request(name, list(range(known)), params)
    request.block_table.block_ids = list(range(1, 2 + (computed + tokens) // 16))
    return ScheduledAhead(request, tokens, computed, computed + tokens)


def watched_steps(kind):
    """Waits and mistakes of: a step with prompts, a decode step behind it whose tokens only the device knows, greedy and drawn;
    and of a decode step that is not asynchronous."""
    from triton.runtime.jit import JITFunction

    found = {}

    def launch(kernel, *args, **kwargs):
        if any(x.device.type != "meta" for x in args if isinstance(x, torch.Tensor)):
            watch.mistakes.append(f"{kernel.__name__} reads the host's memory")

    with patch.object(JITFunction, "run", launch), patch.object(triton_setup, "compiling_for", (9, 0)):
        runner = make_runner(kind)
        for temperature in (0.0, 0.8):
            params = SamplingParams(temperature=temperature, seed=1)
            first = [scheduled("a", 0, 40, 40, params), scheduled("b", 99, 1, 100, params)]
            second = [replace(s, num_tokens=1, num_computed=s.length, length=s.length + 1) for s in first]
            with OnGPU(), Watch() as watch:
                runner.start(SchedulerOutput(0, first))
                results = runner.start(SchedulerOutput(0, second))
                before = watch.waits
                results()
            found[f"async, {temperature:g}"] = [before, watch.waits, watch.mistakes]
        for s in second:
            s.request.append(1)
            s.request.params = SamplingParams(temperature=0)
        with OnGPU(), Watch() as watch:
            runner.run(SchedulerOutput(0, second))
        found["sync"] = [0, watch.waits, watch.mistakes]
    return found


def kernels_of_a_step(runner_class):
    """Of one request with 4,096 tokens, logits included: operators of torch, and launches of Triton by name."""
    from triton.runtime.jit import JITFunction

    config = ModelConfig(**vars(SHAPES["llama-3-8b"]), attention_bias=False, mlp_bias=False)
    with torch.device("meta"):
        model = finish_loading(Transformer(config).to(torch.bfloat16))
    launches = Counter()
    launch = lambda kernel, *args, **kwargs: launches.update([kernel.__name__])  # noqa: E731
    with patch.object(JITFunction, "run", launch), patch.object(triton_setup, "compiling_for", (9, 0)):
        runner = runner_class.create(model, EngineConfig(max_num_seqs=1, max_model_len=4096), 4096)
        runner.kv_cache.slots_of_card = 3 * 132
        runner._record = lambda step: Recording(lambda: None, step())
        batch = StepBatch([1], [4096], [list(range(1, 257))], [0], [4095], [0], [0])
        runner._inputs.fill(batch, 64)
        with OnGPU() as norms, Watch() as watch:
            hidden = runner._recording(1, 64).result
            runner.logits(hidden, [0])
    return {"torch": watch.kernels + norms.norms} | launches


@pytest.fixture(scope="module")
def found():
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_stays_on_the_device_and_waits_once(found, kind):
    for step, (before, waits, mistakes) in found[kind].items():
        assert mistakes == [], step
        assert (before, waits) == (0, 1), step


def test_kernels_of_a_step(found):
    """A decode step of Llama-3 8B at batch 1: 12 a layer, and 5; without fused layers 21 a layer."""
    plain, fused = (found[kind] for kind in ("GPURunner", "FusedRunner"))
    assert sum(fused.values()) == 32 * 12 + 5 <= 420 and sum(plain.values()) == 32 * 21 + 5
    assert fused["store_kernel"] == 32


if __name__ == "__main__":
    counted = {kind.__name__: kernels_of_a_step(kind) for kind in (GPURunner, FusedRunner)}
    print(json.dumps(counted | {kind: watched_steps(kind) for kind in KINDS}))
