"""One product for all kinds of tiles: weights in 32 or 16 bits (`tiled_gemm.py`, and where the processor has a matrix unit,
`matrix_unit.py`), and in 8 or 4 (`quantized_gemm.py`).

Compiled code knows the kind of a weight when it is compiled. numba's `overload` then puts one of these functions in the
place of a name.
"""

import numpy as np

from phase2_attention_kvcache.model.matrix_unit import UnitTiles, missing_rows, multiply_unit_tile
from phase2_attention_kvcache.model.numba_setup import narrow, new_scratch, room_for
from phase2_attention_kvcache.model.quantized_gemm import (
    GROUP,
    TILE,
    Codes,
    Tiles,
    multiply_quantized_tile,
    quantize_inputs,
    quantize_row,
)
from phase2_attention_kvcache.model.tiled_gemm import ROWS, FloatTiles, multiply_float_tile, write_tile
from phase2_attention_kvcache.model.work_sharing import fetch_add

from numba import njit, prange, types  # isort: skip
from numba.extending import overload  # isort: skip

PANEL = 4 * ROWS  # rows whose inputs stay in a core's own cache while all tiles pass by
SHARED_WORK = 1 << 18  # multiplications: some 20 microseconds for one core, and waking another takes as long


def multiply_tile(inputs, weight, tile, first_row, rows, sums):
    """In compiled code: `multiply_float_tile`, `multiply_unit_tile` or `multiply_quantized_tile`, whichever belongs to the weight."""
    raise NotImplementedError("numba puts one of the three functions in its place")


@overload(multiply_tile)
def _multiply_tile(inputs, weight, tile, first_row, rows, sums):
    if weight.instance_class is FloatTiles:
        return lambda inputs, weight, tile, first_row, rows, sums: multiply_float_tile(
            inputs, weight, tile, first_row, rows, sums
        )
    if weight.instance_class is UnitTiles:
        return lambda inputs, weight, tile, first_row, rows, sums: multiply_unit_tile(
            inputs, weight, tile, first_row, rows, sums
        )
    return lambda inputs, weight, tile, first_row, rows, sums: multiply_quantized_tile(
        inputs, weight, tile, first_row, rows, sums
    )


def inputs_of(x, weight):
    """In compiled code: activations as the kernel of `weight` takes them: as they are, or `Codes`."""
    raise NotImplementedError("numba puts one of the two expressions in its place")


@overload(inputs_of)
def _inputs_of(x, weight):
    if weight.instance_class in (FloatTiles, UnitTiles):
        return lambda x, weight: x
    return lambda x, weight: quantize_inputs(x)


def new_inputs(weight, rows, width):
    """Room for what `inputs_of` returns for activations [rows, width]."""
    if isinstance(weight, FloatTiles):
        return room_for((rows, width), np.float32)
    if isinstance(weight, UnitTiles):
        inputs = room_for((rows + missing_rows(rows), width), np.uint16)
        inputs[rows:] = 0
        return inputs
    codes, groups = np.empty((rows, width), np.int8), (rows, width // GROUP)
    return Codes(codes, np.empty(groups, np.float32), np.empty(groups, np.float32))


def write_input(x, row, inputs):
    """In compiled code: one row of activations goes into `inputs`, as `inputs_of` returns them. x: float32 [in]."""
    raise NotImplementedError("numba puts one of the two functions in its place")


@overload(write_input)
def _write_input(x, row, inputs):
    if isinstance(inputs, types.Array):

        def copy(x, row, inputs):
            for i in range(inputs.shape[1]):
                inputs[row, i] = narrow(x[i], inputs)

        return copy
    return lambda x, row, inputs: quantize_row(x, inputs.codes[row], inputs.scales[row], inputs.sums[row])


def tiles_of(weights, layer):
    """One layer's matrix, in compiled code. weights: tiles of any kind, with the layer as one dimension more, in front."""
    raise NotImplementedError("numba puts one of the three expressions in its place")


@overload(tiles_of)
def _tiles_of(weights, layer):
    if weights.instance_class is FloatTiles:
        return lambda weights, layer: FloatTiles(weights.weights[layer], weights.bias[layer])
    if weights.instance_class is UnitTiles:
        return lambda weights, layer: UnitTiles(weights.weights[layer], weights.bias[layer])
    return lambda weights, layer: Tiles(
        weights.codes[layer], weights.scales[layer], weights.zeros[layer], weights.bias[layer]
    )


# ------------------------------------------------------------------ the product


@njit(fastmath=True, cache=True, error_model="numpy")
def multiply_tiles(inputs, weight, out, taken):
    """Takes part after part, until none is left: a tile's outputs for some rows. taken: int32 [1, 1], how many are taken.

    All tiles for the first PANEL rows, then all for the next: so these rows stay in a core's own cache meanwhile.
    """
    sums = new_scratch(ROWS * TILE)
    num_tiles = len(weight.bias) // TILE
    parts = num_tiles * ((len(out) + PANEL - 1) // PANEL)
    part = fetch_add(taken, 0, 0, 1)
    while part < parts:
        tile, panel = part % num_tiles, part // num_tiles * PANEL
        for first_row in range(panel, min(len(out), panel + PANEL), ROWS):
            rows = min(ROWS, len(out) - first_row)
            multiply_tile(inputs, weight, tile, first_row, rows, sums)
            write_tile(sums, tile, first_row, rows, out)
        part = fetch_add(taken, 0, 0, 1)


@njit(parallel=True, fastmath=True, cache=True, error_model="numpy")
def multiply_shared(inputs, weight, out, num_threads):
    """`multiply_tiles` by several threads."""
    taken = np.zeros((1, 1), np.int32)
    for _ in prange(num_threads):
        multiply_tiles(inputs, weight, out, taken)


@njit(fastmath=True, cache=True, error_model="numpy")
def product(x, weight, out, num_threads):
    """out = x @ weight.T + bias.

    Args:
        x: float32 [N, in]; for `UnitTiles` bfloat16 as uint16 [N and `missing_rows`, in].
        weight: `FloatTiles`; or `UnitTiles`; or `Tiles`, for which x is turned into 8 bits first.
        out (written): [N, out], float32, or bfloat16 as uint16.
    """
    inputs = inputs_of(x, weight)
    if num_threads == 1 or x.size * len(weight.bias) < SHARED_WORK:  # sooner done than shared out
        multiply_tiles(inputs, weight, out, np.zeros((1, 1), np.int32))
    else:
        multiply_shared(inputs, weight, out, num_threads)
