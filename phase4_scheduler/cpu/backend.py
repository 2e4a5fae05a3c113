"""A model whose linear layers run in the way that is fastest on this processor."""

import copy
from collections.abc import Sequence

import torch
from torch import nn

from labkit.machine import memory_bytes
from phase2_attention_kvcache.model.layers import Blocks, GeluMLP, SwiGLUMLP
from phase2_attention_kvcache.model.transformer import Transformer
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedLinear
from phase3_paged_attention.paging import compiled_kernel
from phase4_scheduler.cpu.blocks import CPUBlock, CPUBlocks, CPUGeluMLP, CPUSwiGLUMLP
from phase4_scheduler.cpu.linear import float_linear, quantized_linear

SMALL = 1 << 15  # weights of a matrix: below this no choice can be felt, so the layer stays as it is
COPY_SHARE = 0.25  # of the machine's memory: so much may copies of the weights take


def prepare(model: Transformer) -> Transformer:
    """A model that computes the same, faster. Parts that need no other form are shared with the given one, which is not changed."""
    # A subclass, or what a learner has put around a model, may do more.
    if type(model) is not Transformer or model.dtype not in (torch.float32, torch.bfloat16):
        return model
    nbytes = sum(weight.nbytes for weight in model.parameters())
    unpacked = (m.shape[0] * m.shape[1] for m in model.modules() if isinstance(m, QuantizedLinear))
    nbytes += model.dtype.itemsize * sum(unpacked)
    spare = COPY_SHARE * memory_bytes()
    room = (2 * nbytes < spare, 4 * nbytes < spare)  # for two copies; for one in float32 as well
    made: dict[int, nn.Module] = {}

    def convert(module: nn.Module) -> nn.Module:
        if id(module) not in made:
            made[id(module)] = _convert(module)
        return made[id(module)]

    def linear(module: nn.Module, gelu: bool = False) -> nn.Module | None:
        if type(module) is nn.Linear and module.weight.dtype == model.dtype and is_large(module.weight.shape):
            return float_linear(module.weight, module.bias, *room, gelu)
        if type(module) is QuantizedLinear and is_large(module.shape):
            return quantized_linear(module, model.dtype, room[0], gelu)
        return None

    def _convert(module: nn.Module) -> nn.Module:
        if (found := linear(module)) is not None:
            return found
        if type(module) is GeluMLP and (up := linear(module.up, gelu=True)) is not None:
            return twin_of(module, CPUGeluMLP, {"up": up, "down": convert(module.down)})
        children = {name: convert(child) for name, child in module.named_children()}
        if all(child is module._modules[name] for name, child in children.items()):
            return module
        kind = type(module)
        if compiled_kernel() is not None:
            if kind is Blocks and all(map(CPUBlock.knows, module)):
                kind, children = (
                    CPUBlocks,
                    {name: twin_of(block, CPUBlock, {}).read_weights() for name, block in children.items()},
                )
            elif kind is SwiGLUMLP:
                kind = CPUSwiGLUMLP
        return twin_of(module, kind, children)

    found = convert(model)
    table = model.token_table
    if model.head is None and type(table) is nn.Embedding and is_large(table.weight.shape):
        if found is model:
            found = twin_of(model, Transformer, {})
        found.head = float_linear(table.weight, None, *room)
    return found


def twin_of(module: nn.Module, kind: type[nn.Module], children: dict[str, nn.Module]) -> nn.Module:
    """A copy with other children, which may be of another class."""
    twin = copy.copy(module)
    twin.__class__, twin._modules = kind, module._modules | children
    return twin


def is_large(shape: Sequence[int]) -> bool:
    return shape[0] * shape[1] >= SMALL
