"""What a block computes between its products, compiled: the norms and the activation of a row.

In torch a block of GPT-2 is some twenty calls: norms, products, additions, GELU. For one user each has work for a few
microseconds, and costs about as many to start. So a decode step is compiled as a whole: Phase 3's `decode_phases.py` puts
these functions between products (`tiled_product.py`) and attention. All numbers are float32.
"""

from typing import NamedTuple

import numpy as np

from phase2_attention_kvcache.model.numba_setup import exp  # before numba, see there

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
