"""Linear layers for a few rows: one compiled kernel for weights in 32, 16, 8 and 4 bits. All sums are float32.

With one user a step reads every weight once and multiplies it once, so the speed of the memory is the limit. A library's
matrix multiplication is made for many rows; for one it can be slower than plain reading, and it has none for 4 bits with a
scale for 32 weights (Q4_0), nor on every processor one for bfloat16.

The weights are kept in tiles of 64 outputs, [tiles, groups of 32 inputs, 32 inputs x 64 outputs], in the order in which they
are read. Outputs lie side by side: one scale for each of them is applied to a whole register, and no sum goes across its lanes.
A group is one flat row, so that the compiler sees one place in memory, and need not check whether several overlap.
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
NO_SCALE, MIDDLE = (
    np.ones((1, 1, TILE), np.float32),
    np.full((1, 1, TILE), 8, np.uint8),
)  # the same everywhere


class Matrix(NamedTuple):
    """A linear layer as the kernel takes it.

    Attributes:
        weights: float32, bfloat16 as uint16, or int8 [tiles, groups, 32 x 64]; 4 bits as uint32 [tiles, groups, 4 x 64], eight
            inputs of one output in a word, the first in its lowest bits.
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
    return Matrix(stored_bits(weights.flatten(2)), NO_SCALE, MIDDLE, bias_of(bias, len(weight)))


def quantized_matrix(kind: str, planes: Planes, bias: Tensor | None) -> Matrix:
    """Repack a quantized matrix. planes: as in `QuantizedWeight`."""
    codes, zeros = planes["codes"], MIDDLE
    if kind in ("int4", "q4_0"):
        codes = tiled(unpack_nibbles(codes).unflatten(1, (-1, GROUP // 8, 8))).to(torch.int32)
        codes = sum(codes[:, :, :, i] << 4 * i for i in range(8)).view(torch.uint32)
        if "zeros" in planes:
            zeros = tiled(planes["zeros"]).numpy()
    else:
        codes = tiled(codes.unflatten(1, (-1, GROUP))).view(torch.int8)
    scales = tiled(planes["scales"].float())
    return Matrix(codes.flatten(2).numpy(), scales.numpy(), zeros, bias_of(bias, len(planes["codes"])))


def tiled(rows: Tensor) -> Tensor:
    """[out, ...] -> [tiles, ..., 64]; the last tile is filled up with zeros."""
    rows = torch.cat((rows, rows.new_zeros(-len(rows) % TILE, *rows.shape[1:])))
    return rows.unflatten(0, (-1, TILE)).movedim(1, -1).contiguous()


def bias_of(bias: Tensor | None, outputs: int) -> np.ndarray:
    return (torch.zeros(outputs) if bias is None else bias.detach().float()).numpy()


@njit(fastmath=True, cache=True, error_model="numpy")
def add_products(weights, x, sums):
    """sums[j] += sum over i of weights[i, j] x[i], for a group. weights: [32 x 64]. x: float32 [32]. sums: float32 [64]."""
    # Eight inputs at a time: a sum is then read and written once for eight products.
    for first in range(0, GROUP, 8):
        for j in range(TILE):
            s = np.float32(0)
            for i in range(first, first + 8):
                s += widen(weights[TILE * i + j]) * x[i]
            sums[j] += s


@njit(fastmath=True, cache=True, error_model="numpy")
def code(word, i):
    """16 + the 4-bit code i of a word, as float32: the code takes its place among the bits of the number 16. Nothing is converted."""
    bits = (np.uint32(word) >> np.uint32(4 * i)) << np.uint32(19)
    return np.uint32((bits & np.uint32(0x00780000)) | np.uint32(0x41800000)).view(np.float32)


@njit(fastmath=True, cache=True, error_model="numpy")
def add_codes(words, scale, zero, x, sums):
    """The same for 4 bits, where a weight is (code - zero) x scale. words: [4 x 64]. scale: [64]. zero: uint8 [64]."""
    total = np.float32(0)
    for i in range(GROUP):
        total += x[i]
    for j in range(TILE):
        s = -(np.float32(16) + np.float32(zero[j])) * total
        for k in range(GROUP // 8):
            word = words[TILE * k + j]
            for i in range(8):
                s += code(word, i) * x[8 * k + i]
        sums[j] += s * scale[j]


@njit(fastmath=True, cache=True, error_model="numpy")
def unpack(weights, scale, out):
    """The weights of a group as float32, for several rows to share. weights, out (written): [32 x 64]. scale: [64]."""
    for i in range(GROUP):
        for j in range(TILE):
            out[TILE * i + j] = widen(weights[TILE * i + j]) * scale[j]


@njit(parallel=True, fastmath=True, cache=True, error_model="numpy")
def multiply(x, weights, scales, zeros, bias, out):
    """x @ weights.T + bias. x: float32 [N, in]. out (written): float32 [N, out]. Others: a `Matrix`."""
    outputs, in_words = len(bias), weights.shape[2] < GROUP * TILE
    for index in prange(len(weights)):
        tile = np.int64(index)
        scale, zero = scales[min(tile, len(scales) - 1)], zeros[min(tile, len(zeros) - 1)]
        sums, work = np.zeros((len(x), TILE), np.float32), np.empty(GROUP * TILE, np.float32)
        for group in range(weights.shape[1]):
            stored, begin, end = weights[tile, group], group * GROUP, (group + 1) * GROUP
            s, z = scale[min(group, len(scale) - 1)], zero[min(group, len(zero) - 1)]
            if in_words:
                for n in range(len(x)):
                    add_codes(stored, s, z, x[n, begin:end], sums[n])
            elif len(x) == 1:
                part = work[:TILE]
                part[:] = np.float32(0)
                add_products(stored, x[0, begin:end], part)
                for j in range(TILE):
                    sums[0, j] += part[j] * s[j]
            else:
                unpack(stored, s, work)
                for n in range(len(x)):
                    add_products(work, x[n, begin:end], sums[n])
        first = tile * TILE
        for n in range(len(x)):
            for j in range(min(TILE, outputs - first)):
                out[n, first + j] = sums[n, j] + bias[first + j]


def multiply_rows(x: Tensor, matrix: Matrix) -> Tensor:
    """A linear layer. x: [N, in] -> [N, out], in the number format of x."""
    out = torch.empty(len(x), len(matrix.bias), dtype=torch.float32)
    multiply(x.float().contiguous().numpy(), *matrix, out.numpy())
    return out.to(x.dtype)
