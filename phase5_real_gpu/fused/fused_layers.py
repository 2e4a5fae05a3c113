"""Layers with fewer kernels: the operations between two matrix multiplications are one kernel.

Changes: a layer of Llama starts 11 kernels instead of 20 (12 and 21 if contexts are split), and reads queries, keys and
the wide vectors of the MLP once instead of several times. Results differ by rounding at most.
Attaches to: `GPURunner.create` (see `runner.py`), which gets a model with `Attention`, `SwiGLUMLP` and `GeGLUMLP` replaced.

Source: vLLM, csrc/activation_kernels.cu (silu_and_mul); its compiler fuses the rotation with the write of the cache.
"""

import copy

import torch
from torch import Tensor, nn

from phase2_attention_kvcache.model.layers import Angles, Attention, GeGLUMLP, KVCache, SwiGLUMLP
from phase5_real_gpu.fused.store_kernel import store
from phase5_real_gpu.kernels import TritonPagedKVCache
from phase5_real_gpu.kernels.triton_setup import tl, triton

LOG2_E = tl.constexpr(1.4426950408889634)
TILE = 1024


@triton.jit
def gated_kernel(
    both,  # [N, 2 width]: gates, then the vectors that the gates scale
    out,  # [N, width]
    width,
    IS_GELU: tl.constexpr,
    TILE: tl.constexpr,
):
    """SwiGLU or, IS_GELU, GeGLU: both activations are x times the sigmoid of something, since (1 + tanh z) / 2 = sigmoid(2 z)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    gate = tl.load(both + row * 2 * width + columns, mask=columns < width).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + columns, mask=columns < width).to(tl.float32)
    z = gate
    if IS_GELU:
        z = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    found = gate / (1.0 + tl.exp2(z * -LOG2_E)) * up
    tl.store(out + row * width + columns, found.to(out.dtype.element_ty), mask=columns < width)


def gated(both: Tensor, gelu: bool = False) -> Tensor:
    """silu(gate) * up, or gelu(gate) * up with GELU's tanh form. both: [N, 2 width], contiguous -> [N, width]."""
    rows, width = len(both), both.shape[1] // 2
    out = torch.empty(rows, width, dtype=both.dtype, device=both.device)
    if rows:
        gated_kernel[(rows, triton.cdiv(width, TILE))](both, out, width, IS_GELU=gelu, TILE=TILE, num_warps=4)
    return out


class FusedAttention(Attention):
    """Over a `TritonPagedKVCache`, rotation and storing are one kernel."""

    def forward(self, x: Tensor, layer: int, angles: Angles | None, kv: KVCache) -> Tensor:
        if angles is None or not isinstance(kv, TritonPagedKVCache):
            return super().forward(x, layer, angles, kv)
        n = len(x)
        qk, v = self.qkv(x).split([self.q_size + self.kv_size, self.kv_size], dim=-1)
        if self.q_norm is not None:
            qk = self.norm_queries_and_keys(qk)
        q, k = (
            part.unflatten(1, (-1, self.head_dim)) for part in qk.split([self.q_size, self.kv_size], dim=-1)
        )
        v = v.unflatten(1, (-1, self.head_dim))
        caches = kv.storage.k_cache[layer], kv.storage.v_cache[layer]
        store(k, v, *caches, kv.step.slots, q, angles)
        return self.out(kv.attend_stored(layer, q).reshape(n, self.q_size))


class FusedSwiGLU(SwiGLUMLP):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(gated(self.gate_up(x)))


class FusedGeGLU(GeGLUMLP):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(gated(self.gate_up(x), gelu=True))


FUSED = {Attention: FusedAttention, SwiGLUMLP: FusedSwiGLU, GeGLUMLP: FusedGeGLU}


def fuse(module: nn.Module) -> nn.Module:
    """A module that computes the same with fewer kernels. It shares its weights with the given module, which is not changed.

    A subclass of a layer may do more, so it is kept.
    """
    children = {name: child and fuse(child) for name, child in module._modules.items()}
    kind = FUSED.get(type(module), type(module))
    if kind is type(module) and all(child is module._modules[name] for name, child in children.items()):
        return module
    twin = copy.copy(module)
    twin.__class__, twin._modules = kind, children
    return twin
