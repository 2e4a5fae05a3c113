"""Linear layers for a few rows: one compiled kernel for weights in 32, 16, 8 and 4 bits. All sums are float32.

With one user a step reads every weight once and multiplies it once, so the speed of the memory is the limit. A library's
matrix multiplication is made for many rows; for one it can be slower than plain reading, and it has none for 4 bits with a
scale for 32 weights (Q4_0), nor on every processor one for bfloat16.

The weights are kept in tiles of 64 outputs, [tiles, groups of 32 inputs, 32 inputs, 64 outputs], in the order in which they
are read. Outputs lie side by side: one scale for each of them is applied to a whole register, and no sum goes across its lanes.
"""

from typing import NamedTuple

from phase3_paged_attention.compiled.numba_setup import widen  # isort: skip  before numba, see there

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from phase1_tokens_embeddings.weights.ggml_blocks import unpack_nibbles
from phase2_attention_kvcache.quantization.quantized_formats import GROUP, Planes
from phase3_paged_attention.paging.kv_storage import stored_bits

TILE = 64


class Matrix(NamedTuple):
    """A linear layer as the kernel takes it.

    Attributes:
        weights: float32, bfloat16 as uint16, or int8 [tiles, groups, 32, 64]; for 4 bits [..., 16, 64]: input i of a group
            in the low half of a byte, input i + 16 in the high one.
        scales: float32 [tiles, groups, 64]; or the same for a whole row, [tiles, 1, 64], or everywhere, [1, 1, 64].
        zeros: uint8 [tiles, groups, 64], the codes that mean 0 (4 bits only); or the same everywhere, [1, 1, 64].
        bias: float32 [out].
    """

    weights: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    bias: np.ndarray


def float_matrix(weight: Tensor, bias: Tensor | None) -> Matrix:
    """Repack a matrix in float32 or bfloat16. weight: [out, in], in a multiple of 32."""
    weights = tiled(weight.detach().unflatten(1, (-1, GROUP)))
    return Matrix(stored_bits(weights), *everywhere(scale=1, zero=0), bias_of(bias, len(weight)))


def quantized_matrix(kind: str, planes: Planes, bias: Tensor | None) -> Matrix:
    """Repack a quantized matrix. planes: as in `QuantizedWeight`."""
    codes = planes["codes"]
    outputs, (_, zeros) = len(codes), everywhere(scale=1, zero=8)
    if kind in ("int4", "q4_0"):
        codes = tiled(unpack_nibbles(codes).unflatten(1, (-1, GROUP)))
        codes = codes[:, :, :16] | codes[:, :, 16:] << 4
        if "zeros" in planes:
            zeros = tiled(planes["zeros"]).numpy()
    else:
        codes = tiled(codes.unflatten(1, (-1, GROUP)))
    scales = tiled(planes["scales"].float())
    return Matrix(codes.view(torch.int8).numpy(), scales.numpy(), zeros, bias_of(bias, outputs))


def everywhere(scale: float, zero: int) -> tuple[np.ndarray, np.ndarray]:
    """One scale and one zero for all weights."""
    return np.full((1, 1, TILE), scale, np.float32), np.full((1, 1, TILE), zero, np.uint8)


def tiled(rows: Tensor) -> Tensor:
    """[out, ...] -> [tiles, ..., 64]; the last tile is filled up with zeros."""
    missing = -len(rows) % TILE
    rows = torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:])))
    return rows.unflatten(0, (-1, TILE)).movedim(1, -1).contiguous()


def bias_of(bias: Tensor | None, outputs: int) -> np.ndarray:
    return (torch.zeros(outputs) if bias is None else bias.detach().float()).numpy()


@njit(fastmath=True, cache=True, error_model="numpy")
def add_products(weights, x, sums):
    """sums[j] += sum over i of weights[i, j] * x[i]. weights: [32, 64], as stored. x: float32 [32]. sums: float32 [64]."""
    # Eight inputs at a time: a sum is then read and written once for eight products.
    for i in range(0, GROUP, 8):
        w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        w4, w5, w6, w7 = weights[i + 4], weights[i + 5], weights[i + 6], weights[i + 7]
        x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
        x4, x5, x6, x7 = x[i + 4], x[i + 5], x[i + 6], x[i + 7]
        for j in range(TILE):
            first = widen(w0[j]) * x0 + widen(w1[j]) * x1 + widen(w2[j]) * x2 + widen(w3[j]) * x3
            second = widen(w4[j]) * x4 + widen(w5[j]) * x5 + widen(w6[j]) * x6 + widen(w7[j]) * x7
            sums[j] = sums[j] + first + second


@njit(fastmath=True, cache=True, error_model="numpy")
def unpack_codes(packed, zeros, out):
    """The 4-bit codes of a group without their zero points. packed: int8 [16, 64]. zeros: uint8 [64]. out: int8 [32, 64]."""
    for i in range(GROUP // 2):
        for j in range(TILE):
            code, zero = np.uint8(packed[i, j]), zeros[j]
            out[i, j] = np.int8(np.uint8(np.uint8(code & np.uint8(15)) - zero))
            out[i + GROUP // 2, j] = np.int8(np.uint8(np.uint8(code >> np.uint8(4)) - zero))


@njit(fastmath=True, cache=True, error_model="numpy")
def add_group(weights, scale, x, work, sums):
    """Add the products of one group. weights: [32, 64], as stored. x: float32 [N, 32]. work: float32 [32, 64]. sums: [N, 64]."""
    if len(x) == 1:
        part = work[0]
        part[:] = np.float32(0)
        add_products(weights, x[0], part)
        for j in range(TILE):
            sums[0, j] += part[j] * scale[j]
    else:  # the rows share the conversion
        for i in range(GROUP):
            for j in range(TILE):
                work[i, j] = widen(weights[i, j]) * scale[j]
        for row in range(len(x)):
            add_products(work, x[row], sums[row])


@njit(parallel=True, fastmath=True, cache=True, error_model="numpy")
def multiply(x, weights, scales, zeros, bias, out):
    """x @ weights.T + bias. x: float32 [N, in]. out (written): float32 [N, out]. Others: a `Matrix`."""
    outputs = len(bias)
    for index in prange(len(weights)):
        tile = np.int64(index)
        scale, zero = scales[min(tile, len(scales) - 1)], zeros[min(tile, len(zeros) - 1)]
        work, unpacked = np.empty((GROUP, TILE), np.float32), np.empty((GROUP, TILE), np.int8)
        sums = np.zeros((len(x), TILE), np.float32)
        for group in range(weights.shape[1]):
            inputs, stored = x[:, group * GROUP : (group + 1) * GROUP], weights[tile, group]
            scale_of_group = scale[min(group, len(scale) - 1)]
            if len(stored) == GROUP:
                add_group(stored, scale_of_group, inputs, work, sums)
            else:
                unpack_codes(stored, zero[min(group, len(zero) - 1)], unpacked)
                add_group(unpacked, scale_of_group, inputs, work, sums)
        first = tile * TILE
        for n in range(len(x)):
            for j in range(min(TILE, outputs - first)):
                out[n, first + j] = sums[n, j] + bias[first + j]


def multiply_rows(x: Tensor, matrix: Matrix) -> Tensor:
    """A linear layer. x: [N, in] -> [N, out], in the number format of x."""
    out = torch.empty(len(x), len(matrix.bias), dtype=torch.float32)
    multiply(x.float().contiguous().numpy(), *matrix, out.numpy())
    return out.to(x.dtype)
