"""A model whose linear layers run in the way that is fastest on this processor."""

import copy
from collections.abc import Sequence

import torch
from torch import nn

from labkit.machine import memory_bytes
from phase2_attention_kvcache.model.layers import GeluMLP
from phase2_attention_kvcache.model.transformer import Transformer
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedLinear
from phase4_scheduler.cpu.linear import CPUGeluMLP, float_linear, quantized_linear

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

    def is_plain(module: nn.Module) -> bool:
        return (
            type(module) is nn.Linear and module.weight.dtype == model.dtype and is_large(module.weight.shape)
        )

    def _convert(module: nn.Module) -> nn.Module:
        if is_plain(module):
            return float_linear(module.weight, module.bias, *room)
        if type(module) is GeluMLP and is_plain(module.up):
            up = float_linear(module.up.weight, module.up.bias, *room, gelu=True)
            return CPUGeluMLP(module, up, convert(module.down))
        if type(module) is QuantizedLinear and is_large(module.shape):
            return quantized_linear(module, model.dtype, room[0]) or module
        children = {name: convert(child) for name, child in module.named_children()}
        if all(child is module._modules[name] for name, child in children.items()):
            return module
        twin = copy.copy(module)
        twin._modules = module._modules | children
        return twin

    found = convert(model)
    table = model.token_table
    if model.head is None and type(table) is nn.Embedding and is_large(table.weight.shape):
        if found is model:
            found = copy.copy(model)
            found._modules = dict(model._modules)
        found.head = float_linear(table.weight, None, *room)
    return found


def is_large(shape: Sequence[int]) -> bool:
    return shape[0] * shape[1] >= SMALL
