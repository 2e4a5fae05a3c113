"""What all kernels compiled by numba share: its threads, and numbers of 16 bits, which numba does not know."""

# torch before numba: both then use the same threads. Two sets of threads on the same cores wait for each
# other, and everything takes ten times as long.
import torch  # isort: skip
import math
from collections.abc import Sequence

import llvmlite.ir as ir
import numba
import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import DTypeLike
from torch import Tensor

numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]


def use_threads_of_torch() -> None:
    """As many threads as torch, and never more.

    (Starting numba's threads sets torch's number, too, since both have the same ones. Put it back.)
    """
    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    torch.set_num_threads(threads)


def stored_bits(tensor: Tensor) -> Tensor:
    """A tensor as numba can read it: numbers of 16 bits as uint16, others as they are."""
    return tensor.view(torch.uint16) if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def room_for(shape: Sequence[int], dtype: DTypeLike) -> np.ndarray:
    """As `np.empty`, but it begins where 64 bytes begin that a processor reads at a time. An array of numpy's may begin in the
    middle of them; then a register of 64 bytes takes two readings.
    """
    room = torch.empty(math.prod(shape) * np.dtype(dtype).itemsize, dtype=torch.uint8)
    return room.numpy().view(dtype).reshape(shape)


@njit(cache=True)
def new_scratch(size):
    """Room for so many float32, in compiled code. It begins there as well."""
    room = np.empty(size + 15, np.float32)
    skipped = -room.ctypes.data % 64 // 4
    return room[skipped : skipped + size]


@intrinsic
def widen(typing_context, x):
    """A stored number as float32. bfloat16 comes as its 16 bits: they are the upper half of a float32."""
    if x == types.float32:
        return types.float32(types.float32), lambda context, builder, signature, args: args[0]
    if x != types.uint16:
        raise numba.errors.TypingError(f"numbers must be float32 or 16 bits of bfloat16, not {x}")

    def generate(context, builder, signature, args):
        upper = builder.shl(builder.zext(args[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return builder.bitcast(upper, ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def widen_half(typing_context, x):
    """A scale as float32. float16 comes as its 16 bits; processors have an instruction that widens it."""
    if x == types.float32:
        return types.float32(types.float32), lambda context, builder, signature, args: args[0]
    if x != types.uint16:
        raise numba.errors.TypingError(f"scales must be float32 or 16 bits of float16, not {x}")

    def generate(context, builder, signature, args):
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def narrow(typing_context, x, like):
    """A float32 as the numbers of the array `like` are stored. The reverse of `widen`, rounded to the nearest."""
    if like.dtype == types.float32:
        return types.float32(types.float32, like), lambda context, builder, signature, args: args[0]

    def generate(context, builder, signature, args):
        # The lower half goes. What is half a step or more is carried into the upper one; exactly half a step: to even.
        integer = ir.IntType(32)
        number = builder.bitcast(args[0], integer)
        odd = builder.and_(builder.lshr(number, integer(16)), integer(1))
        number = builder.add(number, builder.add(integer(0x7FFF), odd))
        return builder.trunc(builder.lshr(number, integer(16)), ir.IntType(16))

    return types.uint16(types.float32, like), generate


@intrinsic
def power_of_two(typing_context, exponent):
    """2.0 ** exponent for a whole number from -126 to 127: it goes where a float32 keeps its exponent."""

    def generate(context, builder, signature, args):
        integer = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.add(args[0], integer(127)), integer(23)), ir.FloatType())

    return types.float32(types.int32), generate


@njit(fastmath=True, cache=True, error_model="numpy")
def exp(x):
    """e ** x, within one part in four million. Compiled for 16 numbers at a time, which `np.exp` is not.

    x = n ln 2 + r with a whole number n and a small r, so e^x = 2^n e^r; and e^r is a short sum.
    """
    x = min(max(x, np.float32(-87)), np.float32(88))
    n = np.rint(x * np.float32(1.4426950408889634))
    r = x - n * np.float32(0.6931471805599453)
    term = np.float32(1)
    for i in (7, 6, 5, 4, 3, 2, 1):  # 1 + r (1 + r/2 (1 + r/3 (...)))
        term = np.float32(1) + term * r * np.float32(1 / i)
    return term * power_of_two(np.int32(n))


# ------------------------------------------------------------------ instructions


@intrinsic
def fetch(typing_context, numbers, at):
    """Tells the processor that numbers[at] and its neighbours, 64 bytes, will be read soon. Nobody waits for them here.

    Args:
        numbers: flat. at: may lie behind the end.
    """

    def generate(context, builder, signature, args):
        data = context.make_array(numbers)(context, builder, args[0]).data
        emit_fetch(builder, builder.gep(data, [args[1]]))
        return context.get_dummy_value()

    return types.void(numbers, types.intp), generate


def emit_fetch(builder, place):
    """The instruction of `fetch`. place: a pointer."""
    pointer, number = builder.bitcast(place, cgutils.voidptr_t), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [pointer, number(0), number(3), number(1)])  # for reading, into the fastest cache


def in_every_lane(builder, number, lanes):
    """A register of so many lanes that all hold the number."""
    int32 = ir.IntType(32)
    register = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    first = builder.insert_element(register, number, int32(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(int32, lanes), [0] * lanes))


def fma(builder, a, b, c):
    """a * b + c in each lane of three registers of float32, rounded once."""
    kind = ir.FunctionType(a.type, (a.type, a.type, a.type))
    return builder.call(builder.module.declare_intrinsic(f"llvm.fma.v{a.type.count}f32", (), kind), (a, b, c))
