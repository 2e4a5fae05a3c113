"""The CPU backend's model and runner."""

import copy
from collections.abc import Sequence
from itertools import takewhile
from typing import Self

import torch
from torch import nn

from labkit.machine import memory_bytes
from phase2_attention_kvcache.model.transformer import Transformer
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedLinear
from phase3_paged_attention.paging import KVStorage, PagedCache, compiled_kernel
from phase4_scheduler.cpu.linear import CPULinear, float_linear, quantized_linear
from phase4_scheduler.engine import EngineConfig, ModelRunner, Sampled, SchedulerOutput

SMALL = 1 << 15  # weights of a matrix: below this no choice can be felt, so the layer stays as it is
MOST_ALONE = 8  # rows of a step whose sampling one thread does as fast
COPY_SHARE = 0.25  # of the machine's memory: so much may copies of the weights take


class CPURunner(ModelRunner):
    """Runs a model prepared for this processor."""

    @classmethod
    def create(
        cls, model: Transformer, config: EngineConfig, num_blocks: int, storage: KVStorage | None = None
    ) -> Self:
        return super().create(prepare(model), config, num_blocks, storage)

    def __init__(self, model: Transformer, kv_cache: PagedCache, seed: int = 0) -> None:
        super().__init__(model, kv_cache, seed)
        self.most_fused = most_fused_rows(model)

    def run(self, output: SchedulerOutput) -> list[Sampled]:
        """As the runner for all devices. A step that our kernels compute keeps torch to one thread meanwhile: torch's other
        threads would wait for their next work in a loop, on the cores that the kernels' threads need."""
        lens = [s.num_tokens for s in output.scheduled]
        compiled = getattr(self.kv_cache, "compiled", False)
        if not compiled or not 0 < sum(lens) <= self.most_fused or max(lens) > 1:
            return super().run(output)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return super().run(output)
        finally:
            torch.set_num_threads(threads)


def prepare(model: Transformer, fused: bool = True) -> Transformer:
    """A model that computes the same, faster. Parts that need no other form are shared with the given one, which is not changed.

    Args:
        fused: whether decode steps of few rows may run as one call a block.
    """
    # A subclass, or what a learner has put around a model, may do more.
    if type(model) is not Transformer or model.dtype not in (torch.float32, torch.bfloat16):
        return model
    nbytes = sum(weight.nbytes for weight in model.parameters())
    spare = COPY_SHARE * (memory_bytes() or 8 * 2**30)
    room = (nbytes < spare, 3 * nbytes < spare)  # for a packed copy; for one in bfloat16 and one in float32
    made: dict[int, nn.Module] = {}

    def convert(module: nn.Module) -> nn.Module:
        if id(module) not in made:
            made[id(module)] = _convert(module)
        return made[id(module)]

    def _convert(module: nn.Module) -> nn.Module:
        if type(module) is nn.Linear and module.weight.dtype == model.dtype and is_large(module.weight.shape):
            return float_linear(module.weight, module.bias, *room)
        if type(module) is QuantizedLinear and is_large(module.shape):
            return quantized_linear(module, model.dtype) or module
        children = {name: convert(child) for name, child in module.named_children()}
        if all(child is module._modules[name] for name, child in children.items()):
            return module
        twin = copy.copy(module)
        twin._modules = module._modules | children
        return fuse(twin) if fused else twin

    found = convert(model)
    table = model.token_table
    if model.head is None and type(table) is nn.Embedding and is_large(table.weight.shape):
        if found is model:
            found = copy.copy(model)
            found._modules = dict(model._modules)
        found.head = float_linear(table.weight, None, *room)
    return found


def most_fused_rows(model: Transformer) -> int:
    """Up to how many rows a decode step is computed by our kernels alone: all its blocks fused, and the head."""
    if type(model) is not Transformer or not isinstance(model.head, CPULinear):
        return 0
    ours = [rows for rows, _ in takewhile(lambda item: item[1] == "few rows", model.head.ways.items())]
    return min(
        [MOST_ALONE, max(ours, default=0), *(getattr(block, "most_rows", 0) for block in model.blocks)]
    )


def is_large(shape: Sequence[int]) -> bool:
    return shape[0] * shape[1] >= SMALL


def fuse(block: nn.Module) -> nn.Module:
    """The block with its decode steps fused, where that can be done."""
    if compiled_kernel() is None:
        return block
    from phase4_scheduler.cpu.fused_block import FusedBlock, can_fuse  # numba takes half a second to import

    return FusedBlock(block) if can_fuse(block) else block
