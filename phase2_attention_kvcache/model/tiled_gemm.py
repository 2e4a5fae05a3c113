"""Matrix products with weights in 16 or 32 bits, compiled for the CPU.

torch's own product can only be called from Python. A compiled step (see `fused_decode.py`) needs one that is compiled with
it: the kernel of `quantized_gemm.py` without codes and scales. Again outputs lie side by side, so that no sum has to be
taken across the lanes of a register. The weights are laid out anew, once, in tiles of 64 outputs:

    float32   [tiles, inputs, 64 outputs]
    bfloat16  [tiles, pairs of inputs, 64 outputs, 2 inputs]

**Widen once, use four times.** A bfloat16 is the upper half of a float32, so the two of a pair become numbers by a shift and a
mask. Four rows of activations (users, or tokens of a prompt) share the reading and the widening of a tile. Activations stay
float32. Some processors have an instruction for pairs of bfloat16, `vdpbf16ps`, and torch uses it; on the one that we
measured, two multiplications in float32 take half the time of it. So this product is 1.4 times as fast as torch's for 64
rows, and nearer to the exact result.

**Stay in the cache.** A tile's weights are taken 32 KB at a time. So much stays in a core's fastest cache while all rows pass by.
"""

from typing import NamedTuple

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np
from torch import Tensor

from phase2_attention_kvcache.model.numba_setup import fma, in_every_lane, narrow  # before numba, see there
from phase2_attention_kvcache.model.quantized_gemm import TILE, fill_tiles

from numba import njit, types  # isort: skip
from numba.core import cgutils  # isort: skip
from numba.extending import intrinsic  # isort: skip

BLOCK_BYTES = 32 * 1024  # of a tile's weights, which stay in the fastest cache while all rows pass by
ROWS = 64  # whose sums stay there as well; a multiple of the 16 that a matrix unit takes at once


class FloatTiles(NamedTuple):
    """A matrix [out, in] as the kernel reads it. The last tile is filled up with zeros.

    Attributes:
        weights: float32 [tiles, in, 64], or bfloat16 as uint16 [tiles, in / 2, 128], laid out as above.
        bias: float32 [tiles * 64].
    """

    weights: np.ndarray
    bias: np.ndarray


# ------------------------------------------------------------------ laying out


def lay_out_weights(weight: Tensor) -> Tensor:
    """[out, in] float32, or bfloat16 with an even number of inputs -> as `FloatTiles.weights`."""
    pair = 4 // weight.dtype.itemsize
    tiles = fill_tiles(weight).unflatten(0, (-1, TILE)).unflatten(2, (-1, pair))
    return tiles.transpose(1, 2).flatten(2).contiguous()


def rows_of_weights(tiles: Tensor, index: Tensor) -> Tensor:
    """Some rows of `lay_out_weights`' matrix as they were: [rows, in]."""
    return tiles.unflatten(2, (TILE, -1))[index // TILE, :, index % TILE].flatten(1)


# ------------------------------------------------------------------ the product of a tile


@intrinsic(prefer_literal=True)
def add_dots(typing_context, weights, at, x, x_at, x_step, count, rows, sums, sums_at):
    """Products of a part of a tile with `rows` rows of activations, added to `sums`.

    In plain words, for each of `rows` rows and 64 outputs:

        sums[sums_at + row * 64 + output] += sum over i < count of weight[output, i] * x[x_at + row * x_step + i]

    Args:
        weights: float32, or bfloat16 as uint16, flat. at: where the part begins.
        x: float32, flat. x_at: where the first row's inputs begin. x_step: from a row to the next.
        count: how many inputs.
        rows: written as a number in the call, since another number is other machine code.
        sums: float32, flat.
    """

    def generate(context, builder, signature, args):
        pointers = [
            context.make_array(kind)(context, builder, value).data
            for kind, value in ((weights, args[0]), (x, args[2]), (sums, args[7]))
        ]
        starts = [args[1], args[3], args[8]]
        pair = 2 if weights.dtype == types.uint16 else 1
        emit_add_dots(builder, pointers, starts, args[4], args[5], rows.literal_value, pair)
        return context.get_dummy_value()

    index = types.intp
    return types.void(weights, index, x, index, index, index, rows, sums, index), generate


def emit_add_dots(builder, pointers, starts, x_step, count, rows, pair, features=None):
    """The instructions of `add_dots`. Sums stay in registers from the first input to the last.

    Args:
        pointers, starts: of weights, x and sums. pair: inputs that lie side by side, 2 for bfloat16.
        features: what the processor has; None: this one.
    """
    features = llvm.get_host_cpu_features() if features is None else features
    # Numbers in a register, and how many registers of sums a row has: four rows leave room for weights beside them.
    lanes, held = (16, 4) if features.get("avx512f") else (8, 2)
    offset, register = ir.IntType(64), ir.VectorType(ir.FloatType(), lanes)
    weights, x, sums = (builder.bitcast(p, ir.FloatType().as_pointer()) for p in pointers)
    weights_at = builder.udiv(starts[0], offset(pair))  # in words of 4 bytes

    def registers_at(base, start, distance):
        return builder.bitcast(
            builder.gep(base, [builder.add(start, offset(distance))]), register.as_pointer()
        )

    for first in range(0, TILE, held * lanes):
        totals = [[cgutils.alloca_once(builder, register) for _ in range(held)] for _ in range(rows)]
        for row in totals:
            for total in row:
                builder.store(ir.Constant(register, [0.0] * lanes), total)
        with cgutils.for_range(builder, builder.udiv(count, offset(pair)), intp=offset) as loop:
            line = builder.add(weights_at, builder.mul(loop.index, offset(TILE)))
            words = [
                builder.load(registers_at(weights, line, first + lanes * i), align=4) for i in range(held)
            ]
            numbers = (
                [emit_widen(builder, word) for word in words] if pair == 2 else [[word] for word in words]
            )
            for row in range(rows):
                x_here = builder.add(starts[1], builder.mul(x_step, offset(row)))
                x_here = builder.add(x_here, builder.mul(loop.index, offset(pair)))
                for which in range(pair):
                    place = builder.gep(x, [builder.add(x_here, offset(which))])
                    inputs = in_every_lane(builder, builder.load(place), lanes)
                    for i in range(held):
                        total = builder.load(totals[row][i])
                        builder.store(fma(builder, numbers[i][which], inputs, total), totals[row][i])
        for row in range(rows):
            for i in range(held):
                place = registers_at(sums, starts[2], row * TILE + first + lanes * i)
                before = builder.load(place, align=4)
                builder.store(builder.fadd(before, builder.load(totals[row][i])), place, align=4)


def emit_widen(builder, words):
    """Pairs of bfloat16 as two registers of float32: the first of each pair is the lower half of its 4 bytes."""
    integers = ir.VectorType(ir.IntType(32), words.type.count)
    bits = builder.bitcast(words, integers)
    first = builder.shl(bits, ir.Constant(integers, [16] * integers.count))
    second = builder.and_(bits, ir.Constant(integers, [-65536] * integers.count))
    return [builder.bitcast(half, words.type) for half in (first, second)]


# ------------------------------------------------------------------ the product


@njit(fastmath=True, cache=True, error_model="numpy")
def multiply_float_tile(x, weight, tile, first_row, rows, sums):
    """A tile's outputs for some rows.

    Args:
        x: float32 [N, in]. weight: `FloatTiles`.
        rows: at most ROWS.
        sums (written): float32, flat, [rows, 64].
    """
    width = x.shape[1]
    flat_x, weights = x.reshape(-1), weight.weights.reshape(-1)
    block = BLOCK_BYTES // (TILE * weights.itemsize)
    bias = weight.bias[tile * TILE : (tile + 1) * TILE]
    for row in range(rows):
        line = sums[row * TILE : (row + 1) * TILE]
        for i in range(TILE):
            line[i] = bias[i]
    for start in range(0, width, block):
        count, at = min(block, width - start), (tile * width + start) * TILE
        row = 0
        while row < rows:
            x_at = (first_row + row) * width + start
            if row + 4 <= rows:
                add_dots(weights, at, flat_x, x_at, width, count, 4, sums, row * TILE)
                row += 4
            elif row + 2 <= rows:
                add_dots(weights, at, flat_x, x_at, width, count, 2, sums, row * TILE)
                row += 2
            else:
                add_dots(weights, at, flat_x, x_at, width, count, 1, sums, row * TILE)
                row += 1


@njit(fastmath=True, cache=True, error_model="numpy")
def write_tile(sums, tile, first_row, rows, out):
    """What `multiply_tile` found goes to its place. out (written): [N, out], float32, or bfloat16 as uint16."""
    first, outputs = tile * TILE, min(TILE, out.shape[1] - tile * TILE)
    # Parts of their own: numba sees that no index is negative, and writes many numbers at a time.
    for row in range(rows):
        part, place = sums[row * TILE : row * TILE + outputs], out[first_row + row, first : first + outputs]
        for i in range(outputs):
            place[i] = narrow(part[i], place)
