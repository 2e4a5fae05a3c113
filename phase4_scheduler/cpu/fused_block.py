"""A block's decode step for a few rows as one compiled call.

For one user, the plain block is some twenty calls of torch with microseconds of their own, between which the cores wait. Here
Python makes one call a block. Inside, the four linear layers are `multiply` and the attention is phase 3's kernel; what lies
between them are short loops over a few rows. All of it is float32. It equals the plain block but for roundings.
"""

from phase3_paged_attention.compiled.cpu_kernel import paged_decode_cpu, splits_for  # isort: skip  before numba, see there

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

from phase2_attention_kvcache.model.layers import (
    Angles,
    Attention,
    Block,
    GeluMLP,
    KVCache,
    RMSNorm,
    SwiGLUMLP,
)  # fmt: skip
from phase3_paged_attention.compiled.numba_setup import exp, narrow
from phase3_paged_attention.paging.paged_kv_cache import PagedKVCache
from phase4_scheduler.cpu.few_rows import multiply
from phase4_scheduler.cpu.linear import CPULinear


@njit(fastmath=True, cache=True, error_model="numpy")
def norm_rows(x, weight, bias, eps, out):
    """LayerNorm, or where the bias is empty RMSNorm, of each row. x, out (written): float32 [N, width]."""
    width, centered = x.shape[1], len(bias) > 0
    for row in range(len(x)):
        source, target = x[row], out[row]
        mean, square = np.float32(0), np.float32(0)
        if centered:
            for i in range(width):
                mean += source[i]
            mean /= np.float32(width)
        for i in range(width):
            square += (source[i] - mean) * (source[i] - mean)
        scale = np.float32(1) / np.sqrt(square / np.float32(width) + eps)
        if centered:
            for i in range(width):
                target[i] = (source[i] - mean) * scale * weight[i] + bias[i]
        else:
            for i in range(width):
                target[i] = source[i] * scale * weight[i]


@njit(fastmath=True, cache=True, error_model="numpy")
def rotate(heads, cos, sin):
    """`apply_rotary` of one row, in place. heads: [num_heads, head_dim]. cos, sin: [head_dim / 2]."""
    half = len(cos)
    for head in range(len(heads)):
        for i in range(half):
            a, b = heads[head, i], heads[head, half + i]
            heads[head, i], heads[head, half + i] = a * cos[i] - b * sin[i], b * cos[i] + a * sin[i]


@njit(fastmath=True, cache=True, error_model="numpy")
def activate(x, gated, out):
    """tanh-GELU of x [N, d_ff]; or, `gated`, SwiGLU of x [N, 2 d_ff], the gates first. out (written): [N, d_ff].

    Both are x sigmoid(something), since (1 + tanh z) / 2 = sigmoid(2 z).
    """
    width = out.shape[1]
    for row in range(len(x)):
        source, target = x[row], out[row]
        if gated:
            for i in range(width):
                target[i] = source[width + i] * source[i] / (np.float32(1) + exp(-source[i]))
        else:
            for i in range(width):
                a = source[i]
                z = np.float32(1.5957691216057308) * (a + np.float32(0.044715) * a * a * a)
                target[i] = a / (np.float32(1) + exp(-z))


@njit(fastmath=True, cache=True, error_model="numpy")
def decode_block(
    x, shape, norms, matrices, cos, sin, k_cache, v_cache, slots, tables, lens, rule, num_splits
):
    """One block for N rows, each the newest token that its query sees.

    Args:
        x (changed): float32 [N, d_model].
        shape: heads, KV heads, head_dim, and whether the MLP is gated.
        norms: weight, bias and eps of those before attention and MLP, of queries and of keys (empty: there is none).
        matrices: a `Matrix` each of qkv, out, up (gate and up) and down.
        cos, sin: float32 [N, head_dim / 2]; [N, 0]: this block does not rotate.
        k_cache, v_cache (changed): [num_blocks, block_size, num_kv_heads, head_dim], float32, or bfloat16 as uint16.
        slots: int64 [N]. tables, lens, num_splits: as for `paged_decode_cpu`. rule: scale, window, soft cap.
    """
    num_heads, num_kv_heads, head_dim, gated = shape
    attention_norm, mlp_norm, q_norm, k_norm = norms
    qkv_matrix, out_matrix, up_matrix, down_matrix = matrices
    n, rotated, block_size = len(x), num_heads + num_kv_heads, k_cache.shape[1]
    # 1. Queries, keys and values.
    normed = np.empty_like(x)
    norm_rows(x, *attention_norm, normed)
    qkv = np.empty((n, rotated + num_kv_heads, head_dim), np.float32)
    multiply(normed, *qkv_matrix, qkv.reshape(n, -1))
    q = np.empty((n, num_heads, head_dim), np.float32)
    for row in range(n):
        heads = qkv[row]
        if len(q_norm[0]):
            queries, keys = (
                heads[:num_heads].reshape(-1, len(q_norm[0])),
                heads[num_heads:rotated].reshape(-1, len(k_norm[0])),
            )
            norm_rows(queries, *q_norm, queries)
            norm_rows(keys, *k_norm, keys)
        rotate(heads[:rotated], cos[row], sin[row])
        q[row] = heads[:num_heads]
        block, offset = slots[row] // block_size, slots[row] % block_size
        for head in range(num_kv_heads):
            for i in range(head_dim):
                k_cache[block, offset, head, i] = narrow(heads[num_heads + head, i], k_cache)
                v_cache[block, offset, head, i] = narrow(heads[rotated + head, i], v_cache)
    # 2. Attention: all rows are stored before any attends.
    attended = np.empty((n, num_heads, head_dim), np.float32)
    scale, window, softcap = rule
    paged_decode_cpu(q, k_cache, v_cache, tables, lens, scale, window, softcap, num_splits, attended)
    added = np.empty_like(x)
    multiply(attended.reshape(n, -1), *out_matrix, added)
    x += added
    # 3. The MLP.
    norm_rows(x, *mlp_norm, normed)
    raised = np.empty((n, len(up_matrix[3])), np.float32)
    multiply(normed, *up_matrix, raised)
    active = np.empty((n, raised.shape[1] // 2 if gated else raised.shape[1]), np.float32)
    activate(raised, gated, active)
    multiply(active, *down_matrix, added)
    x += added


class FusedBlock(Block):
    """A block of a packed model whose decode steps of few rows run as one call; all others take the plain way.

    Args:
        block: its parts are used, and it is not changed.
    """

    def __init__(self, block: Block) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(block.__dict__ | {"_modules": dict(block._modules)})
        attention, mlp = self.attention, self.mlp
        self._gated = isinstance(mlp, SwiGLUMLP)
        linears = (attention.qkv, attention.out, mlp.gate_up if self._gated else mlp.up, mlp.down)
        self.most_rows = min(linear.most_rows for linear in linears)
        num_kv_heads = attention.kv_size // attention.head_dim
        self._shape = (attention.q_size // attention.head_dim, num_kv_heads, attention.head_dim, self._gated)
        norms = (self.attention_norm, self.mlp_norm, attention.q_norm, attention.k_norm)
        self._norms = tuple(norm_numbers(norm) for norm in norms)
        self._matrices = tuple(tuple(linear.matrix) for linear in linears)
        self._parts = [(m._modules, name, part) for m in self.modules() for name, part in m.named_children()]

    def forward(self, x: Tensor, layer: int, angles: Angles | None, kv: KVCache) -> Tensor:
        if len(x) > self.most_rows or not self._can_fuse(kv):
            return super().forward(x, layer, angles, kv)
        stream, decoder = x.to(torch.float32, copy=True), kv.decoder
        cos, sin = (
            (part.float().numpy() for part in angles) if angles else (np.empty((len(x), 0), np.float32),) * 2
        )
        scales, windows, softcaps = decoder.rules
        rule = (scales[layer], windows[layer], softcaps[layer])
        decode_block(
            stream.numpy(), self._shape, self._norms, self._matrices, cos, sin, decoder.k_cache[layer],
            decoder.v_cache[layer], kv.layout.slot_mapping.numpy(), decoder.block_tables, decoder.context_lens, rule, splits_for(len(x)),
        )  # fmt: skip
        return stream.to(x.dtype)

    def _can_fuse(self, kv: KVCache) -> bool:
        """A subclass of the cache may attend in its own way; and a part or a hook may have been put into the block since."""
        if type(kv) is not PagedKVCache or not kv.compiled or kv.layout.prefills:
            return False
        return all(
            parts[name] is part and not part._forward_hooks and not part._forward_pre_hooks
            for parts, name, part in self._parts
        )


def norm_numbers(norm: nn.Module | None) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Weight, bias and eps; all empty for None."""
    empty = np.empty(0, np.float32)
    if norm is None:
        return empty, empty, np.float32(0)
    bias = norm.bias.detach().float().numpy() if isinstance(norm, nn.LayerNorm) else empty
    return norm.weight.detach().float().numpy(), bias, np.float32(norm.eps)


def can_fuse(block: nn.Module) -> bool:
    """Whether a block is made of the course's own parts that `decode_block` knows, with linear layers the kernel can read.

    A subclass of one of them may do more, so it stays as it is.
    """
    known = {Block, Attention, GeluMLP, SwiGLUMLP, nn.LayerNorm, RMSNorm, CPULinear}
    plain = type(block) is Block and all(type(part) in known for part in block.modules())
    before = plain and None not in (block.attention_norm, block.mlp_norm)
    norms = before and (block.attention_post_norm, block.mlp_post_norm) == (None, None)
    return norms and all(part.matrix is not None for part in block.modules() if type(part) is CPULinear)
