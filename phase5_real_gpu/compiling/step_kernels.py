"""How many kernels a decode step starts: a step of Llama-3 8B without a GPU and without memory, counted.

A small kernel costs the GPU microseconds however little it does, CUDA graph or not: it has to be started, and its threads wait
for memory before they can compute. So their number matters wherever a step is short.

The model and the cache are on torch's "meta" device, where tensors have a shape and no memory. Triton's launches are counted
and not made. Run as a program, it prints what it counted: {"fused": {kernel: count}, "plain": {kernel: count}}.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.paths import ROOT
from phase1_tokens_embeddings.weights.model_shapes import SHAPES
from phase2_attention_kvcache.model import ModelConfig, Transformer
from phase2_attention_kvcache.model.checkpoint import finish_loading
from phase4_scheduler.engine import EngineConfig, StepBatch
from phase5_real_gpu.fused.fused_layers import fuse
from phase5_real_gpu.kernels import TritonPagedKVCache, triton_setup
from phase5_real_gpu.kernels.gpu_runner import GPURunner, Recording

CONTEXT, BATCH = 4096, 1
RESIDENT = 3 * 132  # programs that an H100 runs at the same time


class OnGPU(TorchFunctionMode):
    """Modules that look where a tensor is take the GPU's way."""

    def __init__(self, counts: Counter) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function == Tensor.is_cuda.__get__:
            return True
        if function is F.rms_norm:  # one kernel on a GPU, put together from several elsewhere
            self.counts["rms_norm"] += 1
            return args[0].as_strided(args[0].shape, args[0].stride())
        return function(*args, **kwargs or {})


class Operators(TorchDispatchMode):
    """Counts the operators that are not mere views."""

    def __init__(self, counts: Counter) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        made = operator(*args, **kwargs or {})
        name = operator.overloadpacket.__name__
        # `to` and `reshape` are views only where they have nothing to change.
        first = made[0] if isinstance(made, (list, tuple)) else made
        is_view = operator.is_view and first.untyped_storage()._cdata == args[0].untyped_storage()._cdata
        if not (is_view or name.startswith("empty")):
            self.counts[name] += 1
        return made


def count_step(fused: bool) -> Counter:
    """Kernels of one decode step, by name: one request with `CONTEXT` tokens, logits included."""
    from triton.runtime.jit import JITFunction

    config = ModelConfig(**vars(SHAPES["llama-3-8b"]), attention_bias=False, mlp_bias=False)
    with torch.device("meta"):
        model = finish_loading(Transformer(config).to(torch.bfloat16))
    model = fuse(model) if fused else model
    with patch.object(triton_setup, "compiling_for", (9, 0)):
        cache = TritonPagedKVCache(config, 4096, 16, torch.bfloat16, "meta")
    cache.slots_of_card = RESIDENT
    counts: Counter = Counter()

    def record(step):
        with OnGPU(counts), Operators(counts):
            return Recording(lambda: None, step())

    runner = GPURunner(model, cache, EngineConfig(max_num_seqs=BATCH, max_model_len=CONTEXT), record)
    blocks = list(range(1, 1 + CONTEXT // 16))
    batch = StepBatch([1], [CONTEXT], [blocks], [0], [CONTEXT - 1], [0], [0])

    def launch(kernel, *args, **kwargs):
        counts[kernel.__name__] += 1

    with patch.object(JITFunction, "run", launch), patch.object(triton_setup, "compiling_for", (9, 0)):
        hidden = runner.execute(batch)
        with OnGPU(counts), Operators(counts):
            runner.logits(hidden, [0])
    return counts


def kernels_of_step() -> dict[str, dict[str, int]]:
    """As `count_step`, "fused" and "plain", from a process in which Triton does not interpret."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", __name__]
    return json.loads(
        subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    )


if __name__ == "__main__":
    print(json.dumps({"fused": count_step(fused=True), "plain": count_step(fused=False)}))
