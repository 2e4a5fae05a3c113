"""Linear layers for a few rows: the compiled kernel for weights in 32, 16, 8 and 4 bits. All sums are float32.

With one user a step reads every weight once and multiplies it once, so the pace of the memory is the limit. A library's
matrix multiplication is made for many rows; for one it is slower than plain reading, and it has none for 4 bits with a scale
for 32 weights (Q4_0), nor on every processor one for bfloat16. The two loops here come near the pace of the memory:

    32, 16 bits    the matrix as it is: [out, in]. A core reads whole rows, from the first byte to the last.
    8, 4 bits      tiles of 64 outputs: [tiles, groups of 32 inputs, inputs, 64 outputs]. Outputs lie side by side, so that
                   one scale for each of them is applied to a whole register, and no sum goes across its lanes.
"""

from typing import NamedTuple

from phase3_paged_attention.compiled.numba_setup import stored_bits, widen  # isort: skip  before numba, see there

import numpy as np
import torch
from numba import njit, prange, types
from numba.extending import overload
from torch import Tensor

from phase1_tokens_embeddings.weights.ggml_blocks import unpack_nibbles
from phase2_attention_kvcache.quantization.quantized_formats import GROUP, Planes

TILE = 64


class Matrix(NamedTuple):
    """A linear layer as the kernel takes it. `scales` and `zeros` are None for weights in 32 or 16 bits.

    Attributes:
        weights: float32 [out, in], or bfloat16 as uint16; or codes [tiles, groups, 32, 64] int8, for 4 bits [..., 16, 64]:
            input i of a group in the low half, input i + 16 in the high one.
        scales: float16 as uint16 [tiles, groups, 64], or one for a whole row, float32 [tiles, 1, 64].
        zeros: uint8 [tiles, groups, 64], or the same everywhere: [1, 1, 1].
        bias: float32 [out].
    """

    weights: np.ndarray
    scales: np.ndarray | None
    zeros: np.ndarray | None
    bias: np.ndarray


def float_matrix(weight: Tensor, bias: Tensor | None) -> Matrix:
    """weight: float32 or bfloat16 [out, in], contiguous; the kernel reads this memory."""
    return Matrix(stored_bits(weight.detach()), None, None, bias_of(bias, len(weight)))


def quantized_matrix(kind: str, planes: Planes, bias: Tensor | None) -> Matrix:
    """Repack a quantized matrix. planes: as in `QuantizedWeight`."""
    codes, zeros = planes["codes"], planes.get("zeros")
    outputs = len(codes)
    if kind in ("int4", "q4_0"):
        codes = tiled(unpack_nibbles(codes).unflatten(1, (-1, GROUP)))  # [tiles, groups, 32, 64]
        codes = codes[:, :, :16] | codes[:, :, 16:] << 4
        zeros = torch.full((1, 1, 1), 8, dtype=torch.uint8) if zeros is None else tiled(zeros)
    else:
        codes, zeros = tiled(codes.unflatten(1, (-1, GROUP))), torch.zeros(1, 1, 1, dtype=torch.uint8)
    scales = tiled(planes["scales"])
    scales = scales.view(torch.uint16) if scales.dtype == torch.float16 else scales.float()
    return Matrix(
        codes.view(torch.int8).contiguous().numpy(), scales.numpy(), zeros.numpy(), bias_of(bias, outputs)
    )


def tiled(rows: Tensor) -> Tensor:
    """[out, ...] -> [tiles, ..., 64]; the last tile is filled up with zeros."""
    missing = -len(rows) % TILE
    rows = torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:])))
    return rows.unflatten(0, (-1, TILE)).movedim(1, -1).contiguous()


def bias_of(bias: Tensor | None, outputs: int) -> np.ndarray:
    return (torch.zeros(outputs) if bias is None else bias.detach().float()).numpy()


def scale_of(stored):
    """A scale as float32. float16 comes as its 16 bits. (Subnormal numbers come out right; infinity is never stored.)"""
    raise NotImplementedError("only compiled code calls it")


@overload(scale_of, inline="always")
def _scale_of(stored):
    if stored != types.uint16:
        return lambda stored: stored

    def half(stored):
        number = np.uint32(np.uint32(stored & np.uint16(0x7FFF)) << np.uint32(13))
        sign = np.uint32(np.uint32(stored & np.uint16(0x8000)) << np.uint32(16))
        return np.uint32(number | sign).view(np.float32) * np.float32(2.0**112)

    return half


@njit(fastmath=True, cache=True, error_model="numpy")
def add_products(weights, x, sums):
    """sums[j] += sum over i of weights[i, j] * x[i]. weights: [32, 64], int8 or float32. x: float32 [32]. sums: float32 [64]."""
    for i in range(
        0, GROUP, 8
    ):  # eight inputs at a time: a sum is then read and written once for eight products
        w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        w4, w5, w6, w7 = weights[i + 4], weights[i + 5], weights[i + 6], weights[i + 7]
        x0, x1, x2, x3, x4, x5, x6, x7 = (
            x[i],
            x[i + 1],
            x[i + 2],
            x[i + 3],
            x[i + 4],
            x[i + 5],
            x[i + 6],
            x[i + 7],
        )
        for j in range(TILE):
            first = (
                np.float32(w0[j]) * x0
                + np.float32(w1[j]) * x1
                + np.float32(w2[j]) * x2
                + np.float32(w3[j]) * x3
            )
            second = (
                np.float32(w4[j]) * x4
                + np.float32(w5[j]) * x5
                + np.float32(w6[j]) * x6
                + np.float32(w7[j]) * x7
            )
            sums[j] = sums[j] + first + second


@njit(fastmath=True, cache=True, error_model="numpy")
def unpack_codes(packed, zeros, out):
    """The 4-bit codes of a group without their zero points. packed: int8 [16, 64]. zeros: uint8 [64], or [1]. out: int8 [32, 64]."""
    for i in range(GROUP // 2):
        for j in range(TILE):
            code, zero = np.uint8(packed[i, j]), zeros[j if len(zeros) > 1 else 0]
            out[i, j] = np.int8(np.uint8(np.uint8(code & np.uint8(15)) - zero))
            out[i + GROUP // 2, j] = np.int8(np.uint8(np.uint8(code >> np.uint8(4)) - zero))


@njit(fastmath=True, cache=True, error_model="numpy")
def multiply_tile(x, codes, scales, zeros, tile, sums):
    """One tile's 64 outputs for all rows. x: float32 [N, in]. sums (written): float32 [N, 64]."""
    unpacked, weights = np.empty((GROUP, TILE), np.int8), np.empty((GROUP, TILE), np.float32)
    scale, part = np.empty(TILE, np.float32), np.empty(TILE, np.float32)
    sums[:] = np.float32(0)
    for group in range(codes.shape[1]):
        stored = scales[tile, min(group, scales.shape[1] - 1)]
        for j in range(TILE):
            scale[j] = scale_of(stored[j])
        if codes.shape[2] == GROUP:
            these = codes[tile, group]
        else:
            unpack_codes(
                codes[tile, group], zeros[min(tile, len(zeros) - 1), min(group, zeros.shape[1] - 1)], unpacked
            )
            these = unpacked
        first = group * GROUP
        if len(x) == 1:
            part[:] = np.float32(0)
            add_products(these, x[0, first : first + GROUP], part)
            for j in range(TILE):
                sums[0, j] += part[j] * scale[j]
        else:  # the rows share the conversion
            for i in range(GROUP):
                for j in range(TILE):
                    weights[i, j] = np.float32(these[i, j]) * scale[j]
            for row in range(len(x)):
                add_products(weights, x[row, first : first + GROUP], sums[row])


@njit(parallel=True, fastmath=True, cache=True, error_model="numpy")
def multiply_codes(x, codes, scales, zeros, bias, out):
    """`multiply` for weights in 8 or 4 bits."""
    outputs = len(bias)
    for tile in prange(len(codes)):
        sums = np.empty((len(x), TILE), np.float32)
        multiply_tile(x, codes, scales, zeros, np.int64(tile), sums)
        first = tile * TILE
        for n in range(len(x)):
            for j in range(min(TILE, outputs - first)):
                out[n, first + j] = sums[n, j] + bias[first + j]


@njit(parallel=True, fastmath=True, cache=True, error_model="numpy")
def multiply_floats(x, weights, bias, out):
    """`multiply` for weights in 32 or 16 bits."""
    # Two rows of the matrix at a time, far apart: two streams from memory are faster than one. And four rows of x at a
    # time: they share what is read and widened.
    outputs = len(bias)
    half = (outputs + 1) // 2
    for first in prange(half):
        second = min(half + first, outputs - 1)
        one, two = weights[first], weights[second]
        shared = len(x) // 4 * 4
        for n in range(0, shared, 4):
            x0, x1, x2, x3 = x[n], x[n + 1], x[n + 2], x[n + 3]
            a0, a1, a2, a3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            b0, b1, b2, b3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for i in range(len(one)):
                a, b = widen(one[i]), widen(two[i])
                a0 += a * x0[i]
                a1 += a * x1[i]
                a2 += a * x2[i]
                a3 += a * x3[i]
                b0 += b * x0[i]
                b1 += b * x1[i]
                b2 += b * x2[i]
                b3 += b * x3[i]
            out[n, first], out[n + 1, first] = a0 + bias[first], a1 + bias[first]
            out[n + 2, first], out[n + 3, first] = a2 + bias[first], a3 + bias[first]
            out[n, second], out[n + 1, second] = b0 + bias[second], b1 + bias[second]
            out[n + 2, second], out[n + 3, second] = b2 + bias[second], b3 + bias[second]
        for n in range(shared, len(x)):
            a, b, inputs = np.float32(0), np.float32(0), x[n]
            for i in range(len(one)):
                a += widen(one[i]) * inputs[i]
                b += widen(two[i]) * inputs[i]
            out[n, first] = a + bias[first]
            out[n, second] = b + bias[second]


def multiply(x, weights, scales, zeros, bias, out):
    """x @ weights.T + bias, in compiled code.

    Args:
        x: float32 [N, in]. out (written): float32 [N, out]. Others: a `Matrix`.
    """
    raise NotImplementedError("only compiled code calls it")


@overload(multiply)
def _multiply(x, weights, scales, zeros, bias, out):
    if isinstance(scales, types.NoneType):
        return lambda x, weights, scales, zeros, bias, out: multiply_floats(x, weights, bias, out)
    return lambda x, weights, scales, zeros, bias, out: multiply_codes(x, weights, scales, zeros, bias, out)


def multiply_rows(x: Tensor, matrix: Matrix) -> Tensor:
    """A linear layer. x: [N, in] -> [N, out], in the number format of x."""
    out = torch.empty(len(x), len(matrix.bias), dtype=torch.float32)
    inputs = x.float().contiguous().numpy()
    if matrix.scales is None:
        multiply_floats(inputs, matrix.weights, matrix.bias, out.numpy())
    else:
        multiply_codes(inputs, *matrix, out.numpy())
    return out.to(x.dtype)
