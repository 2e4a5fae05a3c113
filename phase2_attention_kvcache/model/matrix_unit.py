"""Matrix products in bfloat16 on a processor that multiplies whole matrices: Intel's AMX (since 2023).

A register of AMX is a **tile register**, a small matrix: 16 rows of 64 bytes. One instruction, `tdpbf16ps`, takes

    a  16 rows of activations, 32 inputs each                     bfloat16
    b  16 pairs of inputs, of 16 outputs                          bfloat16
    c  16 rows, 16 outputs each                                   float32

and adds to c the product of a and b: 8,192 multiplications, each with its addition, in 16 ticks. Two wide registers at a time,
as in `tiled_gemm.py`, do 512. `b` is what such a tile of weights holds already, in that order, so nothing is laid out anew.

**Two streams.** For one user a step is as long as reading the weights. A processor notices that memory is read line after line, and
fetches further lines by itself, within a page of 4 KB: and that is one turn of our loop. So the loop reads at two places in turn,
the halves of a tile. Reading is 1.1 to 1.2 times as fast.

Activations are rounded to bfloat16, as torch and vLLM do it. One user or sixteen: the time is the same, since a tile register
always has 16 rows. What a row gets depends on no other row.

Source: Intel, "Architecture Instruction Set Extensions Programming Reference", chapter on AMX.
"""

import ctypes
import platform
from functools import cache
from typing import NamedTuple

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np

from phase2_attention_kvcache.model.numba_setup import emit_fetch  # before numba, see there
from phase2_attention_kvcache.model.quantized_gemm import TILE

from numba import njit, types  # isort: skip
from numba.core import cgutils  # isort: skip
from numba.extending import intrinsic  # isort: skip

HEIGHT = 16  # rows of a tile register
INPUTS = 32  # that one instruction takes of each row
BLOCK = 8 * INPUTS  # whose weights, of 64 outputs, stay in the fastest cache while all rows pass by
AHEAD = 1024  # the weights that lie so many numbers further on are fetched: half a turn of the loop
ARCH_PRCTL, REQUEST_PERMISSION, TILE_REGISTERS = 158, 0x1023, 18  # numbers of Linux on x86


class UnitTiles(NamedTuple):
    """A matrix [out, in] in bfloat16, as `FloatTiles` has it, for the matrix unit.

    Attributes:
        weights: uint16 [tiles, in / 2, 128]. bias: float32 [tiles * 64].
    """

    weights: np.ndarray
    bias: np.ndarray


@cache
def has_matrix_unit() -> bool:
    """Whether the processor has one, and Linux lets this process use it: its registers have to be saved whenever another
    program's turn comes, so it wants to be asked first.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return False
    known = llvm.get_host_cpu_features()
    return bool(known.get("amx-bf16")) and not ctypes.CDLL(None).syscall(
        ARCH_PRCTL, REQUEST_PERMISSION, TILE_REGISTERS
    )


def missing_rows(rows: int) -> int:
    """So many more, and tile registers are full."""
    return -rows % HEIGHT


# ------------------------------------------------------------------ the instructions


def instruction(builder, name, *args):
    """A call of one of LLVM's intrinsics for x86."""
    kind = ir.FunctionType(ir.VoidType(), [arg.type for arg in args])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), args)


@intrinsic
def set_up_registers(typing_context):
    """From now on, every tile register of this thread has 16 rows of 64 bytes."""

    def generate(context, builder, signature, args):
        shape = bytearray(64)
        shape[0] = 1  # the only kind of table that there is
        for register in range(8):
            shape[16 + 2 * register], shape[48 + register] = 64, HEIGHT
        table = ir.Constant(ir.ArrayType(ir.IntType(8), 64), shape)
        pointer = builder.bitcast(cgutils.global_constant(builder, "shape", table), cgutils.voidptr_t)
        instruction(builder, "ldtilecfg", pointer)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def give_registers_back(typing_context):
    """This thread needs them no more: nothing has to be saved for it."""

    def generate(context, builder, signature, args):
        instruction(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def add_tile_dots(
    typing_context,
    before,
    before_at,
    before_step,
    weights,
    at,
    x,
    x_at,
    x_step,
    count,
    streams,
    apart,
    sums,
    sums_at,
):
    """Products of a part of a tile with 16 rows of activations, added to what was before: `add_dots` of `tiled_gemm.py`, by the
    matrix unit.

    Args:
        before: float32, flat, what to add to. before_at: where the first row's numbers begin. before_step: from a row to
            the next; 0: the same for all rows.
        weights: bfloat16 as uint16, flat. at: where the part begins.
        x: bfloat16 as uint16, flat. x_at: where the first row's inputs begin. x_step: from a row to the next.
        count: how many inputs of each stream, a multiple of 32.
        streams: how many. apart: inputs from the beginning of one to that of the next.
        sums (written): float32, flat, 64 numbers a row.
    """

    def generate(context, builder, signature, args):
        byte, offset = ir.IntType(8), ir.IntType(64)
        (
            begins,
            begin,
            begin_step,
            table,
            start,
            inputs,
            first,
            step,
            number,
            several,
            distance,
            out,
            place,
        ) = args
        before_here, weights_here, x_here, sums_here = (
            builder.gep(context.make_array(kind)(context, builder, value).data, [at])
            for kind, value, at in (
                (before, begins, begin), (weights, table, start), (x, inputs, first), (sums, out, place),
            )
        )  # fmt: skip

        def move(name, register, base, distance, row_bytes):
            place = builder.bitcast(builder.gep(base, [distance]), cgutils.voidptr_t)
            instruction(builder, name, byte(register), place, row_bytes)

        line = offset(4 * TILE)  # bytes of 64 sums; of 64 pairs of weights as well
        before_line, x_line = builder.mul(begin_step, offset(4)), builder.mul(step, offset(2))
        # Registers 0 to 3 hold the sums of a part each, register 4 activations, 5 to 7 weights.
        parts = range(TILE // 16)
        for part in parts:
            move("tileloadd64", part, before_here, offset(16 * part), before_line)
        turns = cgutils.for_range(builder, builder.udiv(number, offset(INPUTS)), intp=offset)
        with turns as turn, cgutils.for_range(builder, several, intp=offset) as stream:
            read = builder.add(builder.mul(stream.index, distance), builder.mul(turn.index, offset(INPUTS)))
            move("tileloadd64", 4, x_here, read, x_line)
            pairs = builder.mul(read, offset(TILE))
            ahead = builder.add(pairs, offset(AHEAD))
            for fetched in range(0, INPUTS * TILE, 32):
                emit_fetch(builder, builder.gep(weights_here, [builder.add(ahead, offset(fetched))]))
            for part in parts:
                move("tileloadd64", 5 + part % 3, weights_here, builder.add(pairs, offset(32 * part)), line)
                instruction(builder, "tdpbf16ps", byte(part), byte(4), byte(5 + part % 3))
        for part in parts:
            move("tilestored64", part, sums_here, offset(16 * part), line)
        return context.get_dummy_value()

    n = types.intp
    return types.void(before, n, n, weights, n, x, n, n, n, n, n, sums, n), generate


# ------------------------------------------------------------------ the product


@njit(cache=True, error_model="numpy")
def multiply_unit_tile(x, weight, tile, first_row, rows, sums):
    """A tile's outputs for some rows.

    Args:
        x: bfloat16 as uint16 [rows and `missing_rows`, in]. weight: `UnitTiles`.
        first_row: a multiple of 16.
        sums (written): float32, flat, [rows and `missing_rows`, 64].
    """
    width = x.shape[1]
    flat_x, weights = x.reshape(-1), weight.weights.reshape(-1)
    streams = 2 if width % (2 * INPUTS) == 0 else 1
    apart = width // streams
    set_up_registers()
    block = apart if rows <= HEIGHT else BLOCK // streams
    for start in range(0, apart, block):
        count, at = min(block, apart - start), (tile * width + start) * TILE
        for row in range(0, rows, HEIGHT):
            x_at, here = (first_row + row) * width + start, row * TILE
            # First the bias, for each row; then what there is.
            before, before_at, step = (weight.bias, tile * TILE, 0) if start == 0 else (sums, here, TILE)
            add_tile_dots(
                before, before_at, step, weights, at, flat_x, x_at, width, count, streams, apart, sums, here
            )
    give_registers_back()
