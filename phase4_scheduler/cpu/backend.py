"""A model whose linear layers run in the way that is fastest on this processor, with compiled functions between them."""

import copy
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from labkit.machine import memory_bytes
from phase2_attention_kvcache.model.layers import Attention, Block, Blocks, GeluMLP, RMSNorm, SwiGLUMLP
from phase2_attention_kvcache.model.transformer import Transformer
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedLinear
from phase3_paged_attention.paging import compiled_kernel
from phase4_scheduler.cpu.blocks import CPUBlock, CPUBlocks
from phase4_scheduler.cpu.choice import ROWS
from phase4_scheduler.cpu.linear import FEW, CPULinear, float_linear, quantized_linear

SMALL = 1 << 15  # weights of a matrix: below this no choice can be felt, so the layer stays as it is
COPY_SHARE = 0.25  # of the machine's memory: so much may copies of the weights take
# With our kernel a layer is one call. What it saves between the matrix multiplications does not depend on their size; and a
# library's calls read weights more slowly behind other work than behind their like, as they were measured.
SAVED, SLOWER = 100, 0.2  # microseconds a layer; of the time for one row, which is reading


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
            return nn.Sequential(OrderedDict(up=up, down=convert(module.down)))  # `up` applies the activation
        children = {name: convert(child) for name, child in module.named_children()}
        if all(child is module._modules[name] for name, child in children.items()):
            return module
        if type(module) is Blocks and all(map(fits, module)) and compiled_kernel() is not None:
            return twin_of(module, CPUBlocks, {name: cpu_block(block) for name, block in children.items()})
        return twin_of(module, type(module), children)

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


def fits(block: nn.Module) -> bool:
    """Whether the compiled functions can do all that a layer does beside its MLP."""
    if type(block) is not Block or type(block.attention) is not Attention:
        return False
    before, after = block.attention_norm, block.mlp_norm
    if type(before) is not type(after) or type(after) not in (nn.LayerNorm, RMSNorm):
        return False
    head_norm = block.attention.q_norm
    by_head = head_norm is None or len(head_norm.weight) == block.attention.head_dim
    return by_head and (head_norm is None or block.rotation is not None) and block.mlp_post_norm is None


def cpu_block(block: Block) -> CPUBlock:
    """A layer with what the compiled functions read. block: its linear layers are converted."""
    found, attention, mlp = twin_of(block, CPUBlock, {}), block.attention, block.mlp
    q_heads, kv_heads = attention.q_size // attention.head_dim, attention.kv_size // attention.head_dim
    found.num_heads, found.splits = (q_heads, kv_heads), [q_heads, kv_heads, kv_heads]
    found.stream_norms = numbers(block.attention_norm), numbers(block.mlp_norm)
    ones = np.ones(attention.head_dim, np.float32)
    found.head_norms = ones, ones, np.float32(-1)
    if attention.q_norm is not None:
        weight, _, eps, _ = numbers(attention.q_norm)
        found.head_norms = weight, numbers(attention.k_norm)[0], eps
    up = {nn.Sequential: "up", SwiGLUMLP: "gate_up"}.get(type(mlp))
    linears = (attention.qkv, attention.out, getattr(mlp, up), mlp.down) if up else ()
    found.most_few_rows = most_few_rows(linears)
    found.matrices = tuple(linear.few_rows().matrix for linear in linears) if found.most_few_rows else ()
    return found


def most_few_rows(linears: Sequence[nn.Module]) -> int:
    """Up to so many rows a layer is as fast with our kernel."""
    if not linears or not all(type(x) is CPULinear and "few rows" in x.times for x in linears):
        return 0
    most, fastest = 0, [[min(times) for times in zip(*x.times.values())] for x in linears]
    saved = SAVED + SLOWER * sum(times[0] for times in fastest)
    for i, rows in enumerate(ROWS[: ROWS.index(FEW) + 1]):
        if sum(x.times["few rows"][i] for x in linears) > saved + sum(times[i] for times in fastest):
            break
        most = rows
    return most


def numbers(norm: nn.Module) -> tuple[np.ndarray, np.ndarray, np.float32, np.float32]:
    """A norm as compiled code reads it, see `add_and_norm`."""
    bias = torch.zeros_like(norm.weight) if getattr(norm, "bias", None) is None else norm.bias
    arrays = (x.detach().float().numpy() for x in (norm.weight, bias))
    return (*arrays, np.float32(norm.eps), np.float32(type(norm) is nn.LayerNorm))


def is_large(shape: Sequence[int]) -> bool:
    return shape[0] * shape[1] >= SMALL
