"""The two innermost loops of `cpu_kernel.py`, written as instructions: scores, and sums of values.

numba's own loops use registers of half the width and write sums to memory after each token. So these two are built
instruction by instruction, and their docstrings say in plain words what they do. On one core they take 0.5 to 0.8 times as
long as plain loops (16 users, context 256; heads of GPT-2 and Llama-3 8B).
"""

from phase2_attention_kvcache.model.numba_setup import fma, in_every_lane  # isort: skip (torch before numba)

import llvmlite.binding as llvm
import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16 if llvm.get_host_cpu_features().get("avx512f") else 8  # numbers in a register
TOKENS_AT_ONCE = 4  # their scores are computed side by side


@intrinsic(prefer_literal=True)
def score_tokens(
    typing_context, q, q_at, keys, keys_at, step, tokens, head_dim, heads, scores, scores_at, width
):
    """Dot products of `heads` queries with the keys of TOKENS_AT_ONCE tokens. Writes `scores`.

    In plain words, for each of `heads` heads and TOKENS_AT_ONCE tokens:

        scores[scores_at + head * width + t] = sum over i < whole of q[q_at + head * head_dim + i] * key[i]
        where key = keys[keys_at + min(t, tokens - 1) * step :]

    A key is widened once for all heads that share it.

    Args:
        q, scores: float32, flat. keys: float32, or bfloat16 as uint16, flat.
        head_dim: numbers in a head. whole: as many of them as fill registers.
        step: from a token to the next. width: from a head's scores to those of the next.
        heads: written as a number in the call, since another number is other machine code.
    """

    def generate(context, builder, signature, args):
        q_data, key_data, score_data = data_of(context, builder, signature, args, 0, 2, 8)
        _, q_at, _, keys_at, step, tokens, head_dim, _, _, scores_at, width = args
        last = builder.sub(tokens, INDEX(1))
        starts = []
        for t in range(TOKENS_AT_ONCE):
            there = builder.icmp_signed("<", INDEX(t), last)
            starts.append(builder.add(keys_at, builder.mul(step, builder.select(there, INDEX(t), last))))
        sums = [[zero_register(builder) for _ in range(TOKENS_AT_ONCE)] for _ in range(heads.literal_value)]
        with cgutils.for_range_slice(
            builder, INDEX(0), in_registers(builder, head_dim), INDEX(LANES), intp=INDEX
        ) as (i, _):
            for t in range(TOKENS_AT_ONCE):
                key = load_register(builder, key_data, builder.add(starts[t], i))
                for head, row in enumerate(sums):
                    at = builder.add(builder.add(q_at, builder.mul(head_dim, INDEX(head))), i)
                    add_product(builder, row[t], load_register(builder, q_data, at), key)
        for head, row in enumerate(sums):
            for t in range(TOKENS_AT_ONCE):
                at = builder.add(builder.add(scores_at, builder.mul(width, INDEX(head))), INDEX(t))
                builder.store(sum_of_lanes(builder, row[t]), builder.gep(score_data, [at]))
        return context.get_dummy_value()

    n = types.intp
    return types.void(q, n, keys, n, n, n, n, heads, scores, n, n), generate


@intrinsic(prefer_literal=True)
def add_values(
    typing_context, weights, weights_at, width, values, values_at, step, tokens, head_dim, heads, acc, acc_at
):
    """Values of some tokens, weighted for each of `heads` heads that share them, added to `acc`.

    In plain words, for each of `heads` heads and all i < whole:

        acc[acc_at + head * head_dim + i] += sum over t < tokens of
            weights[weights_at + head * width + t] * values[values_at + t * step + i]

    Sums stay in registers from the first token to the last. Arguments: as for `score_tokens`.
    """

    def generate(context, builder, signature, args):
        weight_data, value_data, acc_data = data_of(context, builder, signature, args, 0, 3, 9)
        _, weights_at, width, _, values_at, step, tokens, head_dim, _, _, acc_at = args

        def add(i, registers):
            """For so many registers of numbers from the i-th on."""
            places, sums = [], []
            for head in range(heads.literal_value):
                for register in range(registers):
                    at = builder.add(builder.add(acc_at, builder.mul(head_dim, INDEX(head))), i)
                    places.append(builder.add(at, INDEX(LANES * register)))
                    sums.append(zero_register(builder))
                    builder.store(load_register(builder, acc_data, places[-1]), sums[-1])
            with cgutils.for_range(builder, tokens, intp=INDEX) as loop:
                at = builder.add(builder.add(values_at, builder.mul(loop.index, step)), i)
                found = [
                    load_register(builder, value_data, builder.add(at, INDEX(LANES * register)))
                    for register in range(registers)
                ]
                for head in range(heads.literal_value):
                    at = builder.add(builder.add(weights_at, builder.mul(width, INDEX(head))), loop.index)
                    weight = in_every_lane(builder, builder.load(builder.gep(weight_data, [at])), LANES)
                    for register, value in enumerate(found):
                        add_product(builder, sums[head * registers + register], weight, value)
            for place, total in zip(places, sums):
                target = builder.bitcast(builder.gep(acc_data, [place]), REGISTER.as_pointer())
                builder.store(builder.load(total), target, align=4)

        # A sum waits for the one before it, some four ticks. Meanwhile the processor works on three others.
        at_once = max(1, 4 // heads.literal_value)
        whole = in_registers(builder, head_dim)
        most = builder.sub(whole, builder.urem(whole, INDEX(at_once * LANES)))
        for begin, end, registers in ((INDEX(0), most, at_once), (most, whole, 1)):
            with cgutils.for_range_slice(builder, begin, end, INDEX(registers * LANES), intp=INDEX) as (i, _):
                add(i, registers)
        return context.get_dummy_value()

    n = types.intp
    return types.void(weights, n, n, values, n, n, n, n, heads, acc, n), generate


INDEX, REGISTER = ir.IntType(64), ir.VectorType(ir.FloatType(), LANES)


def data_of(context, builder, signature, args, *which):
    """Where the numbers of some arguments lie."""
    return [context.make_array(signature.args[i])(context, builder, args[i]).data for i in which]


def in_registers(builder, head_dim):
    return builder.and_(head_dim, INDEX(-LANES))


def zero_register(builder):
    place = cgutils.alloca_once(builder, REGISTER)
    builder.store(ir.Constant(REGISTER, [0.0] * LANES), place)
    return place


def load_register(builder, data, at):
    """LANES numbers from `at` on, as float32. bfloat16 is the upper half of a float32."""
    stored = ir.VectorType(data.type.pointee, LANES)
    numbers = builder.load(builder.bitcast(builder.gep(data, [at]), stored.as_pointer()), align=2)
    if stored.element == ir.FloatType():
        return numbers
    integers = ir.VectorType(ir.IntType(32), LANES)
    upper = builder.shl(builder.zext(numbers, integers), ir.Constant(integers, [16] * LANES))
    return builder.bitcast(upper, REGISTER)


def add_product(builder, total, a, b):
    builder.store(fma(builder, a, b, builder.load(total)), total)


def sum_of_lanes(builder, total):
    kind = ir.FunctionType(ir.FloatType(), (ir.FloatType(), REGISTER))
    reduce = builder.module.declare_intrinsic(f"llvm.vector.reduce.fadd.v{LANES}f32", (), kind)
    zero = ir.Constant(ir.FloatType(), 0.0)
    return builder.call(reduce, [zero, builder.load(total)], fastmath=("reassoc",))
