"""A decode step through all blocks of a model as one compiled function.

A step for one user of GPT-2 124M in 4 bits has to read 70 MB, which takes a laptop one or two milliseconds. Walking
through its blocks in Python takes about as long again: some four hundred calls of torch, each with microseconds of its own.
And between two products the second core has nothing to do: it waits, or falls asleep. Here Python makes one call, and the
loop over the blocks is compiled, too:

    for each layer:
        project                    Phase 2: norm, product with the q, k, v matrix
        rotate, store              the new keys and values go to their slots
        paged_decode_cpu           attention over blocks, as everywhere
        finish                     Phase 2: output product, MLP

It does what the plain blocks do over a `PagedKVCache`, and must give the same. It serves steps in which every request has
few new tokens: one, or its drafts. A prompt goes through the plain blocks.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from phase2_attention_kvcache.model.fused_kernels import Norm, finish, project
from phase2_attention_kvcache.model.numba_setup import narrow, stored_bits
from phase2_attention_kvcache.model.packed_quantized import PackedQuantizedLinear
from phase2_attention_kvcache.model.quantized_gemm import Tiles
from phase2_attention_kvcache.model.tiled_gemm import FloatTiles, tiles_of
from phase2_attention_kvcache.model.tiled_linear import TiledLinear
from phase2_attention_kvcache.model.transformer import (
    Attention,
    Block,
    Blocks,
    GeluMLP,
    KVCache,
    RMSNorm,
    SwiGLUMLP,
    Transformer,
)
from phase3_paged_attention.paging.cpu_kernel import paged_decode_cpu
from phase3_paged_attention.paging.paged_kv_cache import PagedKVCache

from numba import njit  # isort: skip (torch before numba)


Matrix = Tiles | FloatTiles


class Layers(NamedTuple):
    """The weights of all blocks: every array has one dimension more, the layer, in front."""

    attention_norm: Norm
    qkv: Matrix
    out: Matrix
    mlp_norm: Norm
    up: Matrix
    down: Matrix
    num_heads: int
    d_ff: int
    gated: bool  # SwiGLU


@njit(cache=True)
def norm_of(norms, layer):
    return Norm(norms.weight[layer], norms.bias[layer], norms.eps, norms.centered)


@njit(fastmath=True, cache=True, error_model="numpy")
def rotate(heads, cos, sin):
    """As `apply_rotary`, in place. heads: [num_heads, head_dim]. cos, sin: [head_dim / 2]."""
    half = len(cos)
    for head in range(len(heads)):
        for i in range(half):
            a, b = heads[head, i], heads[head, half + i]
            heads[head, i], heads[head, half + i] = a * cos[i] - b * sin[i], b * cos[i] + a * sin[i]


@njit(fastmath=True, cache=True, error_model="numpy")
def decode_blocks(stream, layers, cos, sin, k_cache, v_cache, slots, block_tables, context_lens, num_parts):
    """One new token for each of B requests through all blocks.

    Args:
        stream (changed): float32 [B, d_model].
        layers: `Layers`.
        cos, sin: float32 [B, head_dim / 2]; [B, 0]: no rotation.
        k_cache, v_cache (changed): [num_layers, num_blocks, block_size, num_kv_heads, head_dim], float32, or bfloat16 as
            uint16.
        slots: [B], where each new key and value goes. block_tables, context_lens: as for `paged_decode_cpu`.
        num_parts: the number of threads.
    """
    batch = len(stream)
    block_size, num_kv_heads, head_dim = k_cache.shape[2:]
    num_heads = layers.num_heads
    q_size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
    scale = np.float32(1) / np.sqrt(np.float32(head_dim))
    num_splits = max(1, (2 * num_parts + batch - 1) // batch)  # as in CompiledDecode
    qkv = np.empty((batch, q_size + 2 * kv_size), np.float32)
    q = np.empty((batch, num_heads, head_dim), np.float32)
    attended = np.empty((batch, num_heads, head_dim), np.float32)
    for layer in range(len(k_cache)):
        project(stream, norm_of(layers.attention_norm, layer), tiles_of(layers.qkv, layer), qkv, num_parts)
        for b in range(batch):
            heads = qkv[b].reshape(num_heads + 2 * num_kv_heads, head_dim)
            if cos.shape[1]:
                rotate(heads[: num_heads + num_kv_heads], cos[b], sin[b])
            q[b] = heads[:num_heads]
            block, offset = slots[b] // block_size, slots[b] % block_size
            for head in range(num_kv_heads):
                for i in range(head_dim):
                    key, value = heads[num_heads + head, i], heads[num_heads + num_kv_heads + head, i]
                    k_cache[layer, block, offset, head, i] = narrow(key, k_cache)
                    v_cache[layer, block, offset, head, i] = narrow(value, v_cache)
        paged_decode_cpu(
            q, k_cache[layer], v_cache[layer], block_tables, context_lens, scale, num_splits, attended
        )
        finish(
            stream,
            attended.reshape(batch, q_size),
            tiles_of(layers.out, layer),
            norm_of(layers.mlp_norm, layer),
            tiles_of(layers.up, layer),
            layers.gated,
            layers.d_ff,
            tiles_of(layers.down, layer),
            num_parts,
        )


class FusedBlocks(Blocks):
    """As the blocks it is made of, with decode steps over a `PagedKVCache` as one call, whatever their number of rows."""

    def __init__(self, blocks: Blocks) -> None:
        super().__init__(blocks)
        first = blocks[0]
        gated = hasattr(first.mlp, "gate_up")
        up = "gate_up" if gated else "up"
        self.layers = Layers(
            stack_norms([b.attention_norm for b in blocks]),
            stack_tiles([b.attention.qkv for b in blocks]),
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

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, kv: KVCache) -> Tensor:
        # (A subclass may attend in its own way, so it gets the plain blocks.)
        decodes_only = type(kv) is PagedKVCache and kv.compiled and not kv.layout.prefills
        if not decodes_only or self.is_changed():
            return super().forward(x, rotary, kv)
        stream = x.to(torch.float32, copy=True)
        cos, sin = rotary or (stream.new_empty(len(x), 0),) * 2
        data = stored_bits(kv.storage.data).numpy()
        decode_blocks(
            stream.numpy(),
            self.layers,
            cos.numpy(),
            sin.numpy(),
            data[0],
            data[1],
            kv.layout.slot_mapping.numpy(),
            kv.block_tables,
            kv.context_lens,
            torch.get_num_threads(),
        )
        return stream.to(x.dtype)

    def is_changed(self) -> bool:
        """Whether somebody has put a part of their own, or a hook, into a block since. Only the plain blocks ask it."""
        return any(
            parts[name] is not part or part._forward_hooks or part._forward_pre_hooks
            for parts, name, part in self._parts
        )


def stack_norms(norms: Sequence[nn.Module]) -> Norm:
    centered = isinstance(norms[0], nn.LayerNorm)
    weight = torch.stack([norm.weight.detach().float() for norm in norms])
    biases = [norm.bias.detach().float() if centered else torch.zeros_like(weight[0]) for norm in norms]
    return Norm(weight.numpy(), torch.stack(biases).numpy(), np.float32(norms[0].eps), centered)


def stack_tiles(linears: Sequence[PackedQuantizedLinear | TiledLinear]) -> Matrix:
    """One matrix of every layer, behind each other in memory; the layers themselves then look there."""
    kind = type(linears[0].tiles)
    stacked = kind(*(np.stack(arrays) for arrays in zip(*(linear.tiles for linear in linears))))
    for layer, linear in enumerate(linears):
        linear.move(kind(*(array[layer] for array in stacked)))
    return stacked


def can_fuse(model: Transformer) -> bool:
    """Whether the blocks are the course's own and all alike, and all their linear layers laid out in tiles."""
    if type(model.blocks) is not Blocks:
        return False
    layouts = []
    for block in model.blocks:
        if not (type(block) is Block and type(block.attention) is Attention):
            return False
        if type(block.mlp) not in (GeluMLP, SwiGLUMLP):
            return False
        if any(type(norm) not in (nn.LayerNorm, RMSNorm) for norm in (block.attention_norm, block.mlp_norm)):
            return False
        linears = [*block.attention.children(), *block.mlp.children()]
        if any(type(linear) not in (PackedQuantizedLinear, TiledLinear) for linear in linears):
            return False
        layouts.append([(a.shape, a.dtype) for linear in linears for a in linear.tiles])
    return all(layout == layouts[0] for layout in layouts)


def fuse_blocks(model: Transformer) -> Transformer:
    """Let decode steps of a model in tiles run as one call. In place; returns the model."""
    model.blocks = FusedBlocks(model.blocks)
    return model
