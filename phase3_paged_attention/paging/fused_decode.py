"""A decode step through all blocks of a model as one compiled function.

A step for one user of GPT-2 124M in 4 bits has to read 70 MB, which takes a laptop one or two milliseconds. Walking
through its blocks in Python takes about as long again: some four hundred calls of torch, each with microseconds of its own.
Here Python makes one call, and the loop over the blocks is compiled, too:

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
from phase2_attention_kvcache.model.transformer import Blocks, KVCache, Transformer
from phase3_paged_attention.paging.cpu_kernel import paged_decode_cpu
from phase3_paged_attention.paging.paged_kv_cache import PagedKVCache

from numba import njit  # isort: skip (torch before numba)


class Layers(NamedTuple):
    """The weights of all blocks: every array has one dimension more, the layer, in front."""

    attention_norm: Norm
    qkv: Tiles
    out: Tiles
    mlp_norm: Norm
    up: Tiles
    down: Tiles


@njit(cache=True)
def tiles_of(weights, layer):
    """One layer's matrix."""
    return Tiles(weights.codes[layer], weights.scales[layer], weights.zeros[layer], weights.bias[layer])


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
def decode_blocks(
    stream, layers, gated, cos, sin, k_cache, v_cache, slots, block_tables, context_lens, num_parts
):
    """One new token for each of B requests through all blocks.

    Args:
        stream (changed): float32 [B, d_model].
        layers: `Layers`. gated: SwiGLU.
        cos, sin: float32 [B, head_dim / 2]; [B, 0]: no rotation.
        k_cache, v_cache (changed): [num_layers, num_blocks, block_size, num_kv_heads, head_dim], float32, or bfloat16 as
            uint16.
        slots: [B], where each new key and value goes. block_tables, context_lens: as for `paged_decode_cpu`.
        num_parts: the number of threads.
    """
    batch = len(stream)
    block_size, num_kv_heads, head_dim = k_cache.shape[2:]
    q_size, kv_size = layers.out.codes.shape[2] * 32, num_kv_heads * head_dim
    num_heads = q_size // head_dim
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
            gated,
            tiles_of(layers.down, layer),
            num_parts,
        )


class FusedBlocks(Blocks):
    """As the blocks it is made of, with decode steps over a `PagedKVCache` as one call."""

    def __init__(self, blocks: Blocks) -> None:
        super().__init__(blocks)
        self.gated = hasattr(blocks[0].mlp, "gate_up")
        up = "gate_up" if self.gated else "up"
        self.layers = Layers(
            stack_norms([b.attention_norm for b in blocks]),
            stack_tiles([b.attention.qkv for b in blocks]),
            stack_tiles([b.attention.out for b in blocks]),
            stack_norms([b.mlp_norm for b in blocks]),
            stack_tiles([getattr(b.mlp, up) for b in blocks]),
            stack_tiles([b.mlp.down for b in blocks]),
        )

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, kv: KVCache) -> Tensor:
        # (A subclass may attend in its own way, so it gets the plain blocks.)
        decodes_only = type(kv) is PagedKVCache and kv.compiled and not kv.layout.prefills
        if not decodes_only:
            return super().forward(x, rotary, kv)
        stream = x.to(torch.float32, copy=True)
        cos, sin = rotary or (stream.new_empty(len(x), 0),) * 2
        data = stored_bits(kv.storage.data).numpy()
        decode_blocks(
            stream.numpy(),
            self.layers,
            self.gated,
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


def stack_norms(norms: Sequence[nn.Module]) -> Norm:
    centered = isinstance(norms[0], nn.LayerNorm)
    weight = torch.stack([norm.weight.detach().float() for norm in norms])
    biases = [norm.bias.detach().float() if centered else torch.zeros_like(weight[0]) for norm in norms]
    return Norm(weight.numpy(), torch.stack(biases).numpy(), np.float32(norms[0].eps), centered)


def stack_tiles(linears: Sequence[PackedQuantizedLinear]) -> Tiles:
    """One matrix of every layer, behind each other in memory; the layers themselves then look there."""
    stacked = Tiles(*(np.stack(arrays) for arrays in zip(*(linear.tiles for linear in linears))))
    for layer, linear in enumerate(linears):
        linear.move(Tiles(*(array[layer] for array in stacked)))
    return stacked


def can_fuse(model: Transformer) -> bool:
    """Whether all linear layers of the blocks are quantised and packed, and all blocks alike."""
    layouts = []
    for block in model.blocks:
        linears = [*block.attention.children(), *block.mlp.children()]
        if not all(isinstance(linear, PackedQuantizedLinear) for linear in linears):
            return False
        layouts.append([(a.shape, a.dtype) for linear in linears for a in linear.tiles])
    return all(layout == layouts[0] for layout in layouts)


def fuse_blocks(model: Transformer) -> Transformer:
    """Let decode steps of a packed, quantised model run as one call. In place; returns the model."""
    model.blocks = FusedBlocks(model.blocks)
    return model
