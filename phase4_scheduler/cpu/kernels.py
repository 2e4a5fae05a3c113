"""The compiled functions of a step: linear layers for a few rows, and the operations between linear layers. All sums are float32.

**Linear layers.** With one user a step reads every weight once and multiplies it once, so the speed of the memory is the limit. A
library's matrix multiplication is made for many rows; for one it can be slower than plain reading, and it has none for 4 bits with a
scale for 32 weights (Q4_0), nor on every processor one for bfloat16. `tiles.py` says how the weights lie in memory.

**Between them.** In torch a norm is eight operations, a rotation six. Each takes microseconds to start, and more behind a matrix
multiplication: that has filled the processor's caches with weights, so the code of what follows comes from memory again. Compiled, one
function does all of it; a norm and a rotation round once.

Arrays of the model's numbers are float32, or bfloat16 as uint16.
"""

from phase3_paged_attention.compiled.cpu_kernel import exp, narrow, paged_decode_cpu, widen  # isort: skip  before numba, see there

import numpy as np
import torch
from numba import njit, prange
from numba.extending import overload
from torch import Tensor

from phase2_attention_kvcache.quantization.quantized_formats import GROUP
from phase3_paged_attention.compiled.arrays import stored_bits
from phase4_scheduler.cpu.tiles import PARTS, TILE, Matrix


def part_of(weights):
    """How a group of weights lies in memory: in parts of (inputs, outputs). A part is read from end to end."""
    raise NotImplementedError("only compiled code calls it")


@overload(part_of, inline="always")
def _part_of(weights):
    depth, width = PARTS[weights.dtype.bitwidth]
    return lambda weights: (depth, width)


@njit(fastmath=True, cache=True, error_model="numpy")
def add_row(weights, scale, x, sums):
    """sums[j] += scale[j] x sum over i of weights[i, j] x[i], for a group. weights: [32 x 64]. x: [32]. scale, sums: [64]."""
    depth, width = part_of(weights)
    for i in range(0, GROUP, depth):
        for j in range(0, TILE, width):
            for column in range(width):
                even = odd = np.float32(0)  # two sums at a time: an addition need not wait for the one before
                first = TILE * i + depth * j + column
                for row in range(0, depth, 2):
                    even += widen(weights[first + width * row]) * x[i + row]
                    odd += widen(weights[first + width * row + width]) * x[i + row + 1]
                sums[j + column] += (even + odd) * scale[j + column]


@njit(fastmath=True, cache=True, error_model="numpy")
def add_four_rows(weights, scale, x, sums):
    """The same for four rows: a weight is read and widened once for all. x: [4 x 32]. sums: [4 x 64]."""
    depth, width = part_of(weights)
    for j in range(0, TILE, width):
        for i in range(0, GROUP, depth):  # within j: else LLVM keeps x for all j, and runs out of registers
            for column in range(width):
                first, place, factor = TILE * i + depth * j + column, j + column, scale[j + column]
                s0 = s1 = s2 = s3 = np.float32(0)
                for row in range(depth):
                    weight, k = widen(weights[first + width * row]), i + row
                    s0 += weight * x[k]
                    s1 += weight * x[GROUP + k]
                    s2 += weight * x[2 * GROUP + k]
                    s3 += weight * x[3 * GROUP + k]
                sums[place] += s0 * factor
                sums[TILE + place] += s1 * factor
                sums[2 * TILE + place] += s2 * factor
                sums[3 * TILE + place] += s3 * factor


@njit(fastmath=True, cache=True, error_model="numpy")
def add_products(weights, scale, x, sums):
    if len(x) == GROUP:
        add_row(weights, scale, x, sums)
    else:
        add_four_rows(weights, scale, x, sums)


@njit(fastmath=True, cache=True, error_model="numpy")
def code(word, i):
    """16 + the 4-bit code i of a word, as float32: the code takes its place among the bits of the number 16. Nothing is converted."""
    bits = (np.uint32(word) >> np.uint32(4 * i)) << np.uint32(19)
    return np.uint32((bits & np.uint32(0x00780000)) | np.uint32(0x41800000)).view(np.float32)


@njit(fastmath=True, cache=True, error_model="numpy")
def add_codes(words, scale, zero, x, sums):
    """`add_row` for 4 bits, where a weight is (code - zero) x scale. words: [4 x 64]. zero: uint8 [64]."""
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
def unpack(words, zero, out):
    """code - zero, for several rows to share. words: [4 x 64]. zero: uint8 [64]. out (written): float32, a group in its parts."""
    depth, width = part_of(out)
    for i in range(0, GROUP, depth):
        for j in range(0, TILE, width):
            for k in range(0, depth, 8):
                for column in range(width):
                    word = words[TILE // 8 * (i + k) + j + column]
                    middle = np.float32(16) + np.float32(zero[j + column])
                    first = TILE * i + depth * j + width * k + column
                    for row in range(8):
                        out[first + width * row] = code(word, row) - middle


@njit(fastmath=True, cache=True, error_model="numpy")
def multiply_tile(x, weights, scales, zeros, sums):
    """The outputs of a tile, without bias.

    Args:
        x: float32 [1, groups, 32] for one row; for more, four at a time, [fours, groups, 4 x 32]. sums (written): [1, 64] or
            [fours, 4 x 64]. Others: a tile's part of a `Matrix`.
    """
    in_words, work = weights.shape[1] < GROUP * TILE, np.empty(GROUP * TILE, np.float32)
    sums[:] = np.float32(0)
    for group in range(len(weights)):
        stored, zero = weights[group], zeros[min(group, len(zeros) - 1)]
        scale = scales[min(group, len(scales) - 1)]
        if not in_words:
            for n in range(len(x)):
                add_products(stored, scale, x[n, group], sums[n])
        elif sums.shape[1] == TILE:
            add_codes(stored, scale, zero, x[0, group], sums[0])
        else:
            unpack(stored, zero, work)
            for n in range(len(x)):
                add_four_rows(work, scale, x[n, group], sums[n])


@njit(fastmath=True, cache=True, error_model="numpy")
def in_fours(inputs):
    """Rows as `multiply_tile` takes them. inputs: [N, in], float32, or bfloat16 as uint16."""
    together, groups = 1 if len(inputs) == 1 else 4, inputs.shape[1] // GROUP
    x = np.zeros(((len(inputs) + together - 1) // together, groups, together * GROUP), np.float32)
    for n in range(len(inputs)):
        rows, first = x[n // together], n % together * GROUP
        for group in range(groups):
            for i in range(GROUP):
                rows[group, first + i] = widen(inputs[n, group * GROUP + i])
    return x


@njit(parallel=True, fastmath=True, cache=True, error_model="numpy")
def multiply(inputs, weights, scales, zeros, bias, out):
    """inputs @ weights.T + bias. inputs: [N, in], float32, or bfloat16 as uint16. out (written): [N, out]. Others: a `Matrix`."""
    x = in_fours(inputs)
    for index in prange(len(weights)):
        tile, sums = np.int64(index), np.empty((len(x), x.shape[2] // GROUP * TILE), np.float32)
        scale, zero = scales[min(tile, len(scales) - 1)], zeros[min(tile, len(zeros) - 1)]
        multiply_tile(x, weights[tile], scale, zero, sums)
        rows, first = sums.reshape(-1, TILE), tile * TILE
        for n in range(len(inputs)):
            for j in range(min(TILE, len(bias) - first)):
                out[n, first + j] = narrow(rows[n, j] + bias[first + j], out)


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


@njit(parallel=True, cache=True, error_model="numpy")
def store(heads, num_heads, num_kv_heads, slots, k_cache, v_cache):
    """Keys and values into their slots of the cache (written), [num_blocks, block_size, num_kv_heads, head_dim] each."""
    size = k_cache.shape[1]
    for index in prange(len(heads)):
        row = np.int64(index)
        block, place = slots[row] // size, slots[row] % size
        keys, values = k_cache[block, place], v_cache[block, place]
        for head in range(num_kv_heads):
            for i in range(heads.shape[2]):
                keys[head, i] = heads[row, num_heads + head, i]
                values[head, i] = heads[row, num_heads + num_kv_heads + head, i]


@njit(fastmath=True, cache=True, error_model="numpy")
def silu_and_multiply(gate_up, out):
    """The activation of a `SwiGLUMLP`. gate_up: [N, 2 d_ff]. out (written): [N, d_ff]."""
    for row in range(len(out)):
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
def attend(heads, num_heads, num_kv_heads, norms, cos, sin, cached, attended):
    """Prepare queries and keys, store keys and values, and attend with the rows that are decoded.

    Args:
        heads (changed), norms, cos, sin: as above.
        cached: the slots of all rows; which rows are decoded; and see `CompiledDecode.cached`.
        attended (written, in these rows): [N, num_heads x head_dim].
    """
    slots, rows, k_cache, v_cache = cached[:4]
    norm_and_rotate(heads, num_heads, num_kv_heads, norms, cos, sin)
    store(heads, num_heads, num_kv_heads, slots, k_cache, v_cache)
    if len(rows):
        paged_decode_cpu(heads, *cached[1:], attended.reshape(len(heads), num_heads, -1))


@njit(fastmath=True, cache=True, error_model="numpy")
def whole_layer(x, found, before, after, matrices, num_heads, num_kv_heads, norms, cos, sin, cached):
    """A layer of a step of decodes, where our kernel multiplies. Returns what is to be added to x: [N, d_model].

    Args:
        before, after: the norms before attention and before the MLP. matrices: qkv, out, up (or gate and up) and down, each a
            `Matrix`. Others: as for `add_and_norm` and `attend`.
    """
    qkv, out, up, down = matrices
    n, normed, result, width = len(x), np.empty_like(x), np.empty_like(x), len(qkv[3])
    heads = np.empty((n, num_heads + 2 * num_kv_heads, width // (num_heads + 2 * num_kv_heads)), x.dtype)
    attended = np.empty((n, num_heads * heads.shape[2]), x.dtype)
    activated = np.empty((n, down[0].shape[1] * GROUP), x.dtype)
    add_and_norm(x, found, before, normed)
    multiply(normed, *qkv, heads.reshape(n, -1))
    attend(heads, num_heads, num_kv_heads, norms, cos, sin, cached, attended)
    multiply(attended, *out, result)
    add_and_norm(x, result, after, normed)
    if len(up[3]) == activated.shape[1]:
        multiply(normed, *up, activated)
        gelu(activated)
    else:
        gate_up = np.empty((n, len(up[3])), x.dtype)
        multiply(normed, *up, gate_up)
        silu_and_multiply(gate_up, activated)
    multiply(activated, *down, result)
    return result


def multiply_rows(x: Tensor, matrix: Matrix) -> Tensor:
    """A linear layer. x: [N, in] -> [N, out], in the number format of x."""
    out = torch.empty(len(x), len(matrix[-1]), dtype=x.dtype)
    multiply(stored_bits(x.contiguous()), *matrix, stored_bits(out))
    return out
