"""Linear layers for a few rows: one compiled kernel for weights in 32, 16, 8 and 4 bits. All sums are float32.

With one user a step reads every weight once and multiplies it once, so the speed of the memory is the limit. A library's
matrix multiplication is made for many rows; for one it can be slower than plain reading, and it has none for 4 bits with a
scale for 32 weights (Q4_0), nor on every processor one for bfloat16. `tiles.py` says how the weights lie in memory.
"""

from phase3_paged_attention.compiled.cpu_kernel import narrow, widen  # isort: skip  before numba, see there

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from phase2_attention_kvcache.quantization.quantized_formats import GROUP
from phase3_paged_attention.paging.kv_storage import stored_bits
from phase4_scheduler.cpu.tiles import TILE, Matrix


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


@njit(fastmath=True, cache=True, error_model="numpy")
def multiply_tile(x, weights, scales, zeros, sums):
    """The outputs of a tile, without bias. x: float32 [N, in]. sums (written): float32 [N, 64]. Others: a tile's part of a `Matrix`."""
    in_words, work = weights.shape[1] < GROUP * TILE, np.empty(GROUP * TILE, np.float32)
    sums[:] = np.float32(0)
    for group in range(len(weights)):
        stored, begin, end = weights[group], group * GROUP, (group + 1) * GROUP
        scale, zero = scales[min(group, len(scales) - 1)], zeros[min(group, len(zeros) - 1)]
        if in_words:
            for n in range(len(x)):
                add_codes(stored, scale, zero, x[n, begin:end], sums[n])
        elif len(x) == 1:
            part = work[:TILE]
            part[:] = np.float32(0)
            add_products(stored, x[0, begin:end], part)
            for j in range(TILE):
                sums[0, j] += part[j] * scale[j]
        else:
            unpack(stored, scale, work)
            for n in range(len(x)):
                add_products(work, x[n, begin:end], sums[n])


@njit(parallel=True, fastmath=True, cache=True, error_model="numpy")
def multiply(inputs, weights, scales, zeros, bias, out):
    """inputs @ weights.T + bias. inputs: [N, in], float32, or bfloat16 as uint16. out (written): [N, out]. Others: a `Matrix`."""
    x = np.empty(inputs.shape, np.float32)
    for n in range(len(x)):
        for i in range(x.shape[1]):
            x[n, i] = widen(inputs[n, i])
    for index in prange(len(weights)):
        tile, sums = np.int64(index), np.empty((len(x), TILE), np.float32)
        scale, zero = scales[min(tile, len(scales) - 1)], zeros[min(tile, len(zeros) - 1)]
        multiply_tile(x, weights[tile], scale, zero, sums)
        first = tile * TILE
        for n in range(len(x)):
            for j in range(min(TILE, len(bias) - first)):
                out[n, first + j] = narrow(sums[n, j] + bias[first + j], out)


def multiply_rows(x: Tensor, matrix: Matrix) -> Tensor:
    """A linear layer. x: [N, in] -> [N, out], in the number format of x."""
    out = torch.empty(len(x), len(matrix[-1]), dtype=x.dtype)
    multiply(stored_bits(x.contiguous()), *matrix, stored_bits(out))
    return out
