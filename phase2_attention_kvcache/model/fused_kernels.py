"""A block's work in two compiled functions: all that comes before attention, and all that comes after it.

In torch a block of GPT-2 is some twenty calls: norms, products, additions, GELU. For one user each has work for a few
microseconds, and costs about as many to start. Here the same steps stand in two functions, compiled as a whole:

    project      norm -> product with the q, k, v matrix
    finish       product with the output matrix -> add -> norm -> product up -> GELU or SwiGLU -> product down -> add

They are for a few tokens: what is not a product runs on one core. All numbers are float32. Phase 3 puts its attention
between the two, and all blocks one after the other: `fused_decode.py`.
"""

from typing import NamedTuple

import numpy as np

from phase2_attention_kvcache.model.numba_setup import exp  # before numba, see there

from phase2_attention_kvcache.model.tiled_gemm import product  # isort: skip
from numba import njit  # isort: skip


class Norm(NamedTuple):
    """LayerNorm, or RMSNorm, which leaves the mean and the bias out.

    Attributes:
        weight, bias: float32 [d_model]. centered: LayerNorm.
    """

    weight: np.ndarray
    bias: np.ndarray
    eps: np.float32
    centered: bool


@njit(fastmath=True, cache=True, error_model="numpy")
def norm_row(x, norm, y):
    """x, y (written): float32 [d_model]."""
    width = len(x)
    mean, square = np.float32(0), np.float32(0)
    if norm.centered:
        for i in range(width):
            mean += x[i]
        mean /= np.float32(width)
    for i in range(width):
        square += (x[i] - mean) ** 2
    scale = np.float32(1) / np.sqrt(square / np.float32(width) + norm.eps)
    for i in range(width):
        y[i] = (x[i] - mean) * scale * norm.weight[i] + norm.bias[i]


@njit(fastmath=True, cache=True, error_model="numpy")
def activate_row(x, gated, y):
    """GELU in its tanh form of x [d_ff]; or, `gated`, SwiGLU of x [2 d_ff], the gates first. Writes y [d_ff].

    Both are x * sigmoid(something), since (1 + tanh(z)) / 2 is sigmoid(2 z).
    """
    width = len(y)
    if gated:
        for i in range(width):
            y[i] = x[width + i] * x[i] / (np.float32(1) + exp(-x[i]))
    else:
        for i in range(width):
            z = np.float32(1.5957691216057308) * (x[i] + np.float32(0.044715) * x[i] * x[i] * x[i])
            y[i] = x[i] / (np.float32(1) + exp(-z))


@njit(fastmath=True, cache=True, error_model="numpy")
def project(stream, norm, qkv, out, num_parts):
    """out = norm(stream) @ qkv.T + bias. stream: [N, d_model]. qkv: `Tiles` or `FloatTiles`.
    out (written): [N, q_size + 2 kv_size]."""
    normed = np.empty(stream.shape, np.float32)
    for row in range(len(stream)):
        norm_row(stream[row], norm, normed[row])
    product(normed, qkv, out, num_parts)


@njit(fastmath=True, cache=True, error_model="numpy")
def finish(stream, attended, out, norm, up, gated, d_ff, down, num_parts):
    """The rest of a block.

    Args:
        stream (changed): [N, d_model], the vectors that flow past. attended: [N, q_size].
        out, up, down: `Tiles` or `FloatTiles` of the three matrices.
        gated: SwiGLU (`up` has 2 d_ff outputs, the gates first).
    """
    rows, width = stream.shape
    added, normed = np.empty((rows, width), np.float32), np.empty((rows, width), np.float32)
    product(attended, out, added, num_parts)
    for row in range(rows):
        for i in range(width):
            stream[row, i] += added[row, i]
        norm_row(stream[row], norm, normed[row])
    raised = np.empty((rows, 2 * d_ff if gated else d_ff), np.float32)
    active = np.empty((rows, d_ff), np.float32)
    product(normed, up, raised, num_parts)
    for row in range(rows):
        activate_row(raised[row], gated, active[row])
    product(active, down, added, num_parts)
    for row in range(rows):
        for i in range(width):
            stream[row, i] += added[row, i]
