"""A decode step through all blocks of a model as one compiled function.

A step for one user of GPT-2 124M in 4 bits has to read 70 MB, which takes a laptop one or two milliseconds. Walking
through its blocks in Python takes about as long again: some four hundred calls of torch, each with microseconds of its own.
And between two products the second core has nothing to do: it waits, or falls asleep. Here Python makes one call, and the
loop over the blocks is compiled, too (`decode_phases.py`).

It does what the plain blocks do over a `PagedKVCache`, and must give the same. It serves steps in which every request has
few new tokens: one, or its drafts. A prompt goes through the plain blocks.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from phase2_attention_kvcache.model.config import ModelConfig, Rotation
from phase2_attention_kvcache.model.fused_kernels import Norm
from phase2_attention_kvcache.model.large_pages import empty_in_large_pages
from phase2_attention_kvcache.model.numba_setup import stored_bits
from phase2_attention_kvcache.model.packed_quantized import PackedQuantizedLinear, PackedQuantizedWeight
from phase2_attention_kvcache.model.tiled_linear import TiledLinear, TiledWeight
from phase2_attention_kvcache.model.transformer import (
    Angles,
    Attention,
    Block,
    Blocks,
    GeluMLP,
    KVCache,
    RMSNorm,
    SwiGLUMLP,
    Transformer,
)
from phase3_paged_attention.paging.cpu_kernel import as_numbers
from phase3_paged_attention.paging.decode_phases import Keys, Layers, Matrix, decode_blocks
from phase3_paged_attention.paging.paged_kv_cache import PagedKVCache

OURS = (
    Block, Attention, GeluMLP, SwiGLUMLP, nn.LayerNorm, RMSNorm,
    TiledLinear, TiledWeight, PackedQuantizedLinear, PackedQuantizedWeight,
)  # fmt: skip
"""What the blocks that can run as one call are made of. A subclass may do more."""


class FusedBlocks(Blocks):
    """As the blocks it is made of, with steps that only decode over a `PagedKVCache` as one call."""

    def __init__(self, blocks: Blocks) -> None:
        super().__init__(blocks)
        first = blocks[0]
        gated = hasattr(first.mlp, "gate_up")
        up = "gate_up" if gated else "up"
        self.layers = Layers(
            stack_norms([b.attention_norm for b in blocks]),
            stack_tiles([b.attention.qkv for b in blocks]),
            stack_norms([b.attention.q_norm for b in blocks]),
            stack_norms([b.attention.k_norm for b in blocks]),
            np.array([b.rotation is not None for b in blocks]),
            stack_tiles([b.attention.out for b in blocks]),
            stack_norms([b.mlp_norm for b in blocks]),
            stack_tiles([getattr(b.mlp, up) for b in blocks]),
            stack_tiles([b.mlp.down for b in blocks]),
            first.attention.q_size // first.attention.head_dim,
            first.mlp.down.shape[1],
            gated,
        )
        self._parts = [
            (parent._modules, name, part)
            for parent in self.modules()
            for name, part in parent.named_children()
        ]

    def forward(self, x: Tensor, angles: dict[Rotation | None, Angles | None], kv: KVCache) -> Tensor:
        # (A subclass may attend in its own way, so it gets the plain blocks.)
        decodes_only = type(kv) is PagedKVCache and kv.compiled and not kv.layout.prefills
        if not decodes_only or self.is_changed():
            return super().forward(x, angles, kv)
        stream = x.to(torch.float32, copy=True)
        cos, sin = angles.get("full") or (stream.new_empty(len(x), 0),) * 2
        data = stored_bits(kv.storage.data).numpy()
        slots, tables = kv.layout.slot_mapping.numpy(), kv.block_tables
        rules = as_numbers(kv.rules)
        keys = Keys(cos.numpy(), sin.numpy(), data[0], data[1], slots, tables, kv.context_lens, *rules)
        decode_blocks(stream.numpy(), self.layers, keys, torch.get_num_threads())
        return stream.to(x.dtype)

    def is_changed(self) -> bool:
        """Whether somebody has put a part of their own, or a hook, into a block since. Only the plain blocks ask it."""
        return any(
            parts[name] is not part or part._forward_hooks or part._forward_pre_hooks
            for parts, name, part in self._parts
        )


def stack_norms(norms: Sequence[nn.Module | None]) -> Norm:
    """One norm of every layer; of width 0 where there is none."""
    if norms[0] is None:
        return Norm(*(np.empty((len(norms), 0), np.float32) for _ in range(2)), np.float32(0), False)
    centered = isinstance(norms[0], nn.LayerNorm)
    weight = torch.stack([norm.weight.detach().float() for norm in norms])
    biases = [norm.bias.detach().float() if centered else torch.zeros_like(weight[0]) for norm in norms]
    return Norm(weight.numpy(), torch.stack(biases).numpy(), np.float32(norms[0].eps), centered)


def stack_tiles(linears: Sequence[PackedQuantizedLinear | TiledLinear]) -> Matrix:
    """One matrix of every layer, behind each other in memory; the layers themselves then look there."""
    kind = type(linears[0].tiles)
    stacked = kind(*(stack(arrays) for arrays in zip(*(linear.tiles for linear in linears))))
    for layer, linear in enumerate(linears):
        linear.move(kind(*(array[layer] for array in stacked)))
    return stacked


def stack(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """As `np.stack`, in large pages."""
    size = sum(array.nbytes for array in arrays)
    room = empty_in_large_pages((size,), torch.uint8).numpy().view(arrays[0].dtype)
    return np.stack(arrays, out=room.reshape(len(arrays), *arrays[0].shape))


def can_fuse(model: Transformer) -> bool:
    """Whether the blocks are the course's own and all alike, and all their linear layers laid out in tiles."""
    layouts = [layout_of(block) for block in model.blocks]
    alike = None not in layouts and layouts.count(layouts[0]) == len(layouts)
    return type(model.blocks) is Blocks and alike and knows_choices(model.config)


def knows_choices(config: ModelConfig) -> bool:
    """Whether the phases compute what such blocks do: one table of angles, a norm before attention and MLP, no mixture."""
    rotations = {config.rotation(layer) for layer in range(config.num_layers)}
    return "local" not in rotations and config.choices.norm_at == "before" and not config.choices.mixture


def layout_of(block: nn.Module) -> list | None:
    """Kinds of a block's parts, shapes and formats of its matrices; None if a part is not the course's own, or not in tiles."""
    parts = list(block.modules())
    if any(type(part) not in OURS for part in parts):
        return None
    linears = [part for part in parts if isinstance(part, (PackedQuantizedLinear, TiledLinear))]
    return [*map(type, parts), *((array.shape, array.dtype) for linear in linears for array in linear.tiles)]


def fuse_blocks(model: Transformer) -> Transformer:
    """Let decode steps of a model in tiles run as one call. In place; returns the model."""
    model.blocks = FusedBlocks(model.blocks)
    return model
