"""Matrix products with weights in 8 or 4 bits, compiled for the CPU.

With one user, a step reads every weight once, so fewer bytes are less time, as long as turning codes into weights costs
less than the reading that is saved. Two ideas make it cost almost nothing.

**Multiply codes, not weights.** A weight is (code - zero) x scale, with a scale for 32 neighbours. Activations are turned
into codes of 8 bits as well, with a scale of their own for the same 32. Then both scales leave the sum:

    sum of w_i x_i  =  w_scale * x_scale * (sum of w_code_i * x_code_i  -  zero * sum of x_code_i)        i = 1 .. 32

What remains is a sum of products of small whole numbers. Processors have an instruction for it: `vpdpbusd` (AVX-512 VNNI;
AVX-VNNI) multiplies 64 pairs of bytes and adds four neighbours each into 16 sums. No weight is ever written as a float.

**Outputs lie side by side.** Each of the 16 sums belongs to another output, so that no sum has to be taken across the
lanes of a register. For this the codes are laid out anew, once, in tiles of 64 outputs and 32 inputs:

    codes  [tiles, groups, 8 quads, 64 outputs, 4 inputs]     8 bits: one byte a code
           [tiles, groups, 4 quads, 64 outputs, 4 inputs]     4 bits: quad p in the low halves, quad p + 4 in the high ones

The kernel reads a tile from its first to its last byte, which is the pace that a memory likes best. For many rows (users,
or tokens of a prompt), four of them share one reading and one unpacking of a tile.

Source: the same idea as ggml's `vec_dot_q4_0_q8_0`, which rounds activations to 8 bits, too; the order of outputs is that of
torch's `_weight_int4pack_mm_for_cpu`.
"""

from typing import NamedTuple

import torch  # isort: skip
import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np
from numba import njit, prange, types
from numba.extending import intrinsic
from torch import Tensor

from phase2_attention_kvcache.model.numba_setup import in_every_lane, widen_half

TILE, GROUP, QUAD = 64, 32, 4  # outputs of a tile, inputs that share a scale, inputs of one instruction


class Tiles(NamedTuple):
    """A matrix [out, in] as the kernel reads it. The last tile is filled up with zeros.

    Attributes:
        codes: uint8 [tiles, groups, bytes of 64 x 32 codes], laid out as above.
        scales: [tiles, groups, 64] float16 as uint16; or [tiles, 1, 64] float32: one for a whole row.
        zeros: uint8 [tiles, groups, 64]; or [1, 1, 64]: the same everywhere.
        bias: float32 [tiles * 64].
    """

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    bias: np.ndarray


class Codes(NamedTuple):
    """Rows of activations in 8 bits; see `quantize_row`.

    Attributes:
        codes: int8 [N, in]. scales, sums: float32 [N, groups].
    """

    codes: np.ndarray
    scales: np.ndarray
    sums: np.ndarray


# ------------------------------------------------------------------ laying out


def lay_out_codes(codes: Tensor, bits: int) -> Tensor:
    """Codes without a sign, uint8 [out, in] -> uint8 [tiles, groups, bytes]."""
    codes = fill_tiles(codes).unflatten(0, (-1, TILE)).unflatten(2, (-1, GROUP // QUAD, QUAD))
    codes = codes.permute(0, 2, 3, 1, 4)  # [tiles, groups, quads, outputs, inputs]
    if bits == 4:
        low, high = codes.chunk(2, dim=2)
        codes = low | high << 4
    return codes.flatten(2).contiguous()


def lay_out_scales(scales: Tensor) -> Tensor:
    """Scales or zero points [out, groups] -> [tiles, groups, 64]."""
    return fill_tiles(scales).unflatten(0, (-1, TILE)).transpose(1, 2).contiguous()


def rows_of_codes(codes: Tensor, bits: int, index: Tensor) -> Tensor:
    """Some rows of `lay_out_codes`' matrix as they were: uint8 [rows, in]."""
    rows = codes.unflatten(2, (-1, TILE, QUAD))[index // TILE, :, :, index % TILE]  # [rows, groups, quads, 4]
    if bits == 4:
        rows = torch.cat((rows & 15, rows >> 4), dim=2)
    return rows.flatten(1)


def rows_of_scales(scales: Tensor, index: Tensor) -> Tensor:
    """Some rows of `lay_out_scales`' matrix: [rows, groups]."""
    return scales[index // TILE, :, index % TILE]


def fill_tiles(rows: Tensor) -> Tensor:
    """Rows of zeros behind the last one, until 64 divides their number."""
    missing = -len(rows) % TILE
    return torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:]))) if missing else rows


# ------------------------------------------------------------------ the product of a tile


@intrinsic(prefer_literal=True)
def dot_tile(typing_context, codes, at, x, x_at, x_step, rows, bits, dots):
    """Whole-number products of a tile's 32 inputs with `rows` rows of activations. Writes `dots`.

    In plain words, for each of `rows` rows and 64 outputs:

        dots[row * 64 + output] = sum over i < 32 of code[output, i] * x[x_at + row * x_step + i]

    Args:
        codes: uint8, flat. at: where the tile's codes begin.
        x: int8, flat. x_at: where the first row's 32 inputs begin. x_step: from a row to the next.
        rows, bits: written as numbers in the call, since another number is other machine code.
        dots: int32, flat.
    """

    def generate(context, builder, signature, args):
        pointer = [
            context.make_array(kind)(context, builder, value).data
            for kind, value in ((codes, args[0]), (x, args[2]), (dots, args[7]))
        ]
        emit_dot_tile(builder, pointer, args[1], args[3], args[4], rows.literal_value, bits.literal_value)
        return context.get_dummy_value()

    signature = types.void(codes, types.intp, x, types.intp, types.intp, rows, bits, dots)
    return signature, generate


def emit_dot_tile(builder, pointers, at, x_at, x_step, rows, bits, features=None):
    """The instructions of `dot_tile`: all sums stay in registers until the end.

    Args:
        features: what the processor has; None: this one.
    """
    features = llvm.get_host_cpu_features() if features is None else features
    lanes = 8 if features.get("avxvnni") and not features.get("avx512vnni") else 16
    int32, offset = ir.IntType(32), ir.IntType(64)
    register = ir.VectorType(int32, lanes)
    codes, x, dots = (builder.bitcast(p, ir.IntType(8).as_pointer()) for p in pointers)

    def constant(value):
        return ir.Constant(register, [value] * lanes)

    def place(base, start, distance, kind):
        byte = builder.gep(base, [builder.add(start, ir.Constant(offset, distance))])
        return builder.bitcast(byte, kind.as_pointer())

    sums = [[constant(0)] * (TILE // lanes) for _ in range(rows)]
    row_starts = [builder.add(x_at, builder.mul(x_step, ir.Constant(offset, row))) for row in range(rows)]
    num_quads = GROUP // QUAD
    stored_quads = num_quads * bits // 8
    for quad in range(num_quads):
        inputs = []  # the row's four inputs, in every lane
        for start in row_starts:
            four = builder.load(place(x, start, QUAD * quad, int32))
            inputs.append(in_every_lane(builder, four, lanes))
        for i in range(TILE // lanes):
            distance = QUAD * (TILE * (quad % stored_quads) + lanes * i)
            weights = builder.load(place(codes, at, distance, register), align=1)
            if bits == 4:
                if quad >= stored_quads:
                    weights = builder.lshr(weights, constant(4))
                weights = builder.and_(weights, constant(0x0F0F0F0F))
            for row in range(rows):
                sums[row][i] = emit_dot_of_quads(builder, sums[row][i], weights, inputs[row], features)
    for row in range(rows):
        for i in range(TILE // lanes):
            distance = 4 * (TILE * row + lanes * i)
            builder.store(sums[row][i], place(dots, ir.Constant(offset, 0), distance, register), align=4)


def emit_dot_of_quads(builder, sums, weights, inputs, features):
    """sums + weights . inputs. A lane holds four bytes: of weights without a sign, of inputs with one."""
    register, lanes = sums.type, sums.type.count
    if features.get("avx512vnni") or features.get("avxvnni"):
        quads = ir.VectorType(ir.IntType(8), QUAD * lanes)
        kind = ir.FunctionType(register, (register, quads, quads))
        vpdpbusd = builder.module.declare_intrinsic(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", (), kind)
        return builder.call(vpdpbusd, [sums, builder.bitcast(weights, quads), builder.bitcast(inputs, quads)])

    def constant(value):
        return ir.Constant(register, [value] * lanes)

    for byte in range(QUAD):  # any other processor: byte by byte
        weight = builder.and_(builder.lshr(weights, constant(8 * byte)), constant(255))
        x = builder.ashr(builder.shl(inputs, constant(24 - 8 * byte)), constant(24))
        sums = builder.add(sums, builder.mul(weight, x))
    return sums


# ------------------------------------------------------------------ the product


@njit(fastmath=True, cache=True, error_model="numpy")
def quantize_row(x, codes, scales, sums):
    """One row of activations in 8 bits: x = code * scale, a scale for 32 neighbours.

    Args:
        x: float32 [in]. codes (written): int8 [in]. scales: float32 [groups]. sums: float32 [groups], of each group's codes.
    """
    for group in range(len(scales)):
        start = group * GROUP
        largest = np.float32(0)
        for i in range(start, start + GROUP):
            largest = max(largest, abs(x[i]))
        scales[group] = largest / np.float32(127)
        inverse = np.float32(127) / max(largest, np.float32(1e-30))
        total = np.int32(0)
        for i in range(start, start + GROUP):
            code = np.int32(np.rint(x[i] * inverse))
            codes[i] = code
            total += code
        sums[group] = total


@njit(fastmath=True, cache=True, error_model="numpy")
def multiply_quantized_tile(inputs, weight, tile, first_row, rows, sums):
    """A tile's outputs for some rows.

    Args:
        inputs: `Codes` of all rows.
        weight: `Tiles`.
        sums (written): float32, flat, [rows, 64].
    """
    width = inputs.codes.shape[1]
    num_groups, size = weight.codes.shape[1:]
    codes, x = weight.codes.reshape(-1), inputs.codes.reshape(-1)
    four_bits = size == TILE * GROUP // 2
    # Where a row has one scale, all its groups look at the same one; the same for zeros, of which there may be one for all.
    scale_step, zero_step = min(1, weight.scales.shape[1] - 1), min(1, weight.zeros.shape[1] - 1)
    zero_tile_step = min(1, weight.zeros.shape[0] - 1)
    dots = np.empty(4 * TILE, np.int32)
    row = 0
    while row < rows:
        together = 4 if row + 4 <= rows else 1
        for r in range(row, row + together):
            for i in range(TILE):
                sums[r * TILE + i] = np.float32(0)
        for group in range(num_groups):
            at, x_at = (tile * num_groups + group) * size, (first_row + row) * width + group * GROUP
            if together == 4 and four_bits:
                dot_tile(codes, at, x, x_at, width, 4, 4, dots)
            elif together == 4:
                dot_tile(codes, at, x, x_at, width, 4, 8, dots)
            elif four_bits:
                dot_tile(codes, at, x, x_at, width, 1, 4, dots)
            else:
                dot_tile(codes, at, x, x_at, width, 1, 8, dots)
            scales = weight.scales[tile, group * scale_step]
            zeros = weight.zeros[tile * zero_tile_step, group * zero_step]
            for r in range(together):
                x_scale = inputs.scales[first_row + row + r, group]
                x_sum = inputs.sums[first_row + row + r, group]
                for i in range(TILE):
                    dot = np.float32(dots[r * TILE + i]) - np.float32(zeros[i]) * x_sum
                    sums[(row + r) * TILE + i] += widen_half(scales[i]) * x_scale * dot
        for r in range(row, row + together):
            for i in range(TILE):
                sums[r * TILE + i] += weight.bias[tile * TILE + i]
        row += together


@njit(parallel=True, fastmath=True, cache=True, error_model="numpy")
def quantize_rows(x, inputs):
    """`quantize_row` for every row, shared out among the cores."""
    for row in prange(len(x)):
        quantize_row(x[row], inputs.codes[row], inputs.scales[row], inputs.sums[row])


@njit(fastmath=True, cache=True, error_model="numpy")
def quantize_inputs(x):
    """x: float32 [N, in] -> `Codes`."""
    rows, width = x.shape
    inputs = Codes(
        np.empty((rows, width), np.int8),
        np.empty((rows, width // GROUP), np.float32),
        np.empty((rows, width // GROUP), np.float32),
    )
    if len(x) < 8:  # sooner done than shared out
        for row in range(len(x)):
            quantize_row(x[row], inputs.codes[row], inputs.scales[row], inputs.sums[row])
    else:
        quantize_rows(x, inputs)
    return inputs
