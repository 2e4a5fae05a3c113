"""The operations between two linear layers as compiled functions, and what our kernel leaves of a layer: two calls.

In torch a norm is eight operations, a rotation six. Each takes microseconds to start, and more behind a matrix multiplication: that
has filled the processor's caches with weights, so the code of what follows comes from memory again. Compiled, one function does
all of it, in float32, and rounds once.

Arrays of the model's numbers are float32, or bfloat16 as uint16.
"""

from phase3_paged_attention.compiled.cpu_kernel import exp, narrow, widen  # isort: skip  before numba, see there

import numpy as np
from numba import njit, prange

from phase2_attention_kvcache.quantization.quantized_formats import GROUP
from phase4_scheduler.cpu.few_rows import multiply


@njit(parallel=True, fastmath=True, cache=True, error_model="numpy")
def add_and_norm(x, found, norm, normed):
    """Add `found` to x, the residual stream, and write the norm of the sum. x (changed), normed (written): [N, d_model].

    Args:
        found: [N, d_model]; or [0, d_model]: nothing is added.
        norm: weight and bias, float32 [d_model]; eps, float32; and 1 if the mean is subtracted (LayerNorm), 0 if not (RMSNorm).
    """
    weight, bias, eps, centered = norm
    size = np.float32(x.shape[1])
    for index in prange(len(x)):
        row = np.int64(index)
        stream, out, wide = x[row], normed[row], np.empty(x.shape[1], np.float32)
        if len(found):
            for i in range(len(wide)):
                stream[i] = narrow(widen(stream[i]) + widen(found[row, i]), x)
        total = square = np.float32(0)
        for i in range(len(wide)):
            wide[i] = widen(stream[i])
            total += wide[i]
        mean = centered * total / size
        for i in range(len(wide)):
            wide[i] -= mean
            square += wide[i] * wide[i]
        scale = np.float32(1) / np.sqrt(square / size + eps)
        for i in range(len(wide)):
            out[i] = narrow(wide[i] * scale * weight[i] + bias[i], x)


@njit(parallel=True, fastmath=True, cache=True, error_model="numpy")
def norm_and_rotate(heads, num_heads, num_kv_heads, norms, cos, sin):
    """Queries and keys, as `Attention` prepares them. heads (changed): [N, num_heads + 2 num_kv_heads, head_dim].

    Args:
        norms: the weights for queries and for keys, float32 [head_dim], and eps; eps below 0: no norm.
        cos, sin: [N, head_dim / 2]; [N, 0]: nothing is done.
    """
    q_weight, k_weight, eps = norms
    half = cos.shape[1]
    num_rows = len(heads) if half else 0
    for index in prange(num_rows):
        row = np.int64(index)
        for head in range(num_heads + num_kv_heads):
            x, weight, scale = heads[row, head], q_weight if head < num_heads else k_weight, np.float32(1)
            if eps >= 0:
                square = np.float32(0)
                for i in range(2 * half):
                    square += widen(x[i]) * widen(x[i])
                scale /= np.sqrt(square / np.float32(2 * half) + eps)
            for i in range(half):
                first = widen(x[i]) * scale * weight[i]
                second = widen(x[half + i]) * scale * weight[half + i]
                c, s = widen(cos[row, i]), widen(sin[row, i])
                x[i] = narrow(first * c - second * s, x)
                x[half + i] = narrow(second * c + first * s, x)


@njit(parallel=True, fastmath=True, cache=True, error_model="numpy")
def silu_and_multiply(gate_up, out):
    """The activation of a `SwiGLUMLP`. gate_up: [N, 2 d_ff]. out (written): [N, d_ff]."""
    for index in prange(len(out)):
        row = np.int64(index)
        for i in range(out.shape[1]):
            gate = widen(gate_up[row, i])
            gate = widen(narrow(gate / (np.float32(1) + exp(-gate)), out))
            out[row, i] = narrow(gate * widen(gate_up[row, out.shape[1] + i]), out)


@njit(fastmath=True, cache=True, error_model="numpy")
def gelu(x):
    """In its tanh form, in place; tanh(s) = 1 - 2 / (e^2s + 1). x: [N, d_ff]."""
    for row in range(len(x)):
        for i in range(x.shape[1]):
            v = widen(x[row, i])
            s = np.float32(0.7978845608028654) * (v + np.float32(0.044715) * v * v * v)
            half = np.float32(1) - np.float32(1) / (exp(np.float32(2) * s) + np.float32(1))
            x[row, i] = narrow(v * half, x)


@njit(fastmath=True, cache=True, error_model="numpy")
def before_attention(x, found, norm, qkv, num_heads, num_kv_heads, norms, cos, sin, heads):
    """What a layer does before attention, where our kernel multiplies. heads (written), others: as above. qkv: a `Matrix`."""
    normed = np.empty_like(x)
    add_and_norm(x, found, norm, normed)
    multiply(normed, *qkv, heads.reshape(len(x), -1))
    norm_and_rotate(heads, num_heads, num_kv_heads, norms, cos, sin)


@njit(fastmath=True, cache=True, error_model="numpy")
def after_attention(x, attended, out, norm, up, down):
    """What it does after it: [N, d_model], to be added to x. attended: [N, q_size]. out, up, down: each a `Matrix`."""
    found, normed = np.empty_like(x), np.empty_like(x)
    multiply(attended, *out, found)
    add_and_norm(x, found, norm, normed)
    activated = np.empty((len(x), down[0].shape[1] * GROUP), x.dtype)
    if len(up[3]) == activated.shape[1]:
        multiply(normed, *up, activated)
        gelu(activated)
    else:
        gate_up = np.empty((len(x), len(up[3])), x.dtype)
        multiply(normed, *up, gate_up)
        silu_and_multiply(gate_up, activated)
    multiply(activated, *down, found)
    return found
