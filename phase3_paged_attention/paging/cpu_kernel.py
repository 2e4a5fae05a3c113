"""Decode attention on a CPU that reads keys and values where they lie.

The obvious way gathers the scattered blocks of every request into one row and attends over that. It reads
each key, writes it, and reads it again. For 64 users that takes ten times as long as attending in place.

This kernel copies nothing. It is `paged_attention_loops` of `paged_attention.py` over again: the same
loops, compiled to machine code by numba, with the requests shared out among the cores. A block of all heads
fits into a core's fast cache, so the loops go through it a head at a time. What they add up then stays in
registers:

    scores    four tokens side by side, so that a query is loaded once for four keys
    values    the sums of a head, from the first token of a block to the last
    both      four query heads that share a KV head ("grouped" queries) share its reading and widening

numba's own loops use registers of half the width and write sums to memory after each token. So these two
innermost loops are written as instructions, and their docstrings say in plain words what they do. On one core
they take 0.5 to 0.8 times as long as plain loops (16 users, context 256; heads of GPT-2 and Llama-3 8B).

A single request with a long context would keep one core busy and let the others watch. So its context is
cut into parts ("split KV"), each part has its own online softmax, and the parts are merged at the end. The
same idea keeps a GPU busy in Phase 5; there, the paper is Dao et al., "Flash-Decoding" (2023).
"""

from phase2_attention_kvcache.model.numba_setup import (  # isort: skip
    exp,
    fma,
    in_every_lane,
    stored_bits,
    use_threads_of_torch,
    widen,
)
import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np
import torch
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from phase3_paged_attention.paging.kv_storage import KVStorage

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
        with cgutils.for_range_slice(
            builder, INDEX(0), in_registers(builder, head_dim), INDEX(LANES), intp=INDEX
        ) as (i, _):
            places, sums = [], []
            for head in range(heads.literal_value):
                at = builder.add(builder.add(acc_at, builder.mul(head_dim, INDEX(head))), i)
                sums.append(zero_register(builder))
                places.append(at)
                builder.store(load_register(builder, acc_data, at), sums[-1])
            with cgutils.for_range(builder, tokens, intp=INDEX) as loop:
                at = builder.add(builder.add(values_at, builder.mul(loop.index, step)), i)
                value = load_register(builder, value_data, at)
                for head, total in enumerate(sums):
                    at = builder.add(builder.add(weights_at, builder.mul(width, INDEX(head))), loop.index)
                    weight = in_every_lane(builder, builder.load(builder.gep(weight_data, [at])), LANES)
                    add_product(builder, total, weight, value)
            for place, total in zip(places, sums):
                target = builder.bitcast(builder.gep(acc_data, [place]), REGISTER.as_pointer())
                builder.store(builder.load(total), target, align=4)
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


@njit(fastmath=True, cache=True, error_model="numpy")
def attend_part(q, k_cache, v_cache, block_table, context_len, first, last, scale, acc, largest, total):
    """One query token over some blocks of its request. Writes `acc`, `largest`, `total`; see `merge_parts`.

    Args:
        q: float32 [num_heads, head_dim].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], float32, or bfloat16 as uint16.
        block_table: int32, the request's blocks. context_len: its tokens, the query token included.
        first, last: the blocks of this part, `block_table[first:last]`. May be none.
        scale: float32, usually 1 / sqrt(head_dim).
        acc: float32 [num_heads, head_dim], the weighted values, each weight being exp(score - largest).
        largest: float32 [num_heads], the largest score.
        total: float32 [num_heads], the sum of weights.
    """
    num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = num_heads // num_kv_heads  # query heads that share a KV head
    shared = 4 if group % 4 == 0 else 1  # of them, so many at a time
    for head in range(num_heads):
        largest[head], total[head] = np.float32(-1e30), np.float32(0)
        for i in range(head_dim):
            acc[head, i] = np.float32(0)
    width = block_size + TOKENS_AT_ONCE - 1  # the scores behind those of the last token are not used
    scores = np.empty((num_heads, width), np.float32)
    flat_q, flat_k, flat_v = q.reshape(-1), k_cache.reshape(-1), v_cache.reshape(-1)
    flat_scores, flat_acc = scores.reshape(-1), acc.reshape(-1)
    step = num_kv_heads * head_dim
    whole = head_dim - head_dim % LANES
    for logical in range(first, last):
        block = block_table[logical] * block_size * step  # where its numbers begin
        tokens = min(block_size, context_len - logical * block_size)
        for t in range(0, tokens, TOKENS_AT_ONCE):
            for head in range(0, num_heads, shared):
                q_at, k_at = head * head_dim, block + t * step + head // group * head_dim
                s_at = head * width + t
                if shared == 4:
                    score_tokens(
                        flat_q, q_at, flat_k, k_at, step, tokens - t, head_dim, 4, flat_scores, s_at, width
                    )
                else:
                    score_tokens(
                        flat_q, q_at, flat_k, k_at, step, tokens - t, head_dim, 1, flat_scores, s_at, width
                    )
        for head in range(num_heads):
            for t in range(tokens):
                k_at = block + t * step + head // group * head_dim
                for i in range(whole, head_dim):
                    scores[head, t] += q[head, i] * widen(flat_k[k_at + i])
        # The online softmax, a block at a time.
        for head in range(num_heads):
            block_largest = np.float32(-1e30)
            for t in range(tokens):
                block_largest = max(block_largest, scores[head, t])
            new_largest = max(largest[head], block_largest * scale)
            shrink = exp(largest[head] - new_largest)
            largest[head] = new_largest
            for i in range(head_dim):
                acc[head, i] *= shrink
            added = np.float32(0)
            for t in range(tokens):
                scores[head, t] = exp(scores[head, t] * scale - new_largest)
                added += scores[head, t]
            total[head] = total[head] * shrink + added
        for head in range(0, num_heads, shared):
            s_at, v_at, acc_at = head * width, block + head // group * head_dim, head * head_dim
            if shared == 4:
                add_values(
                    flat_scores, s_at, width, flat_v, v_at, step, tokens, head_dim, 4, flat_acc, acc_at
                )
            else:
                add_values(
                    flat_scores, s_at, width, flat_v, v_at, step, tokens, head_dim, 1, flat_acc, acc_at
                )
        for head in range(num_heads):
            for i in range(whole, head_dim):
                for t in range(tokens):
                    v_at = block + t * step + head // group * head_dim
                    acc[head, i] += scores[head, t] * widen(flat_v[v_at + i])


@njit(fastmath=True, cache=True, error_model="numpy")
def merge_parts(accs, largests, totals, out):
    """The attention of one request from what `attend_part` found in each of its parts. Writes `out`.

    Args:
        accs: float32 [num_splits, num_heads, head_dim]. largests, totals: float32 [num_splits, num_heads].
        out: float32 [num_heads, head_dim].
    """
    num_splits, num_heads, head_dim = accs.shape
    for head in range(num_heads):
        largest = largests[0, head]
        for split in range(1, num_splits):
            largest = max(largest, largests[split, head])
        total = np.float32(0)
        for i in range(head_dim):
            out[head, i] = np.float32(0)
        for split in range(num_splits):
            shrink = exp(largests[split, head] - largest)
            total += shrink * totals[split, head]
            for i in range(head_dim):
                out[head, i] += shrink * accs[split, head, i]
        for i in range(head_dim):
            out[head, i] /= total


@njit(parallel=True, fastmath=True, cache=True, error_model="numpy")
def paged_decode_cpu(q, k_cache, v_cache, block_tables, context_lens, scale, num_splits, out):
    """One query token for each request. Writes `out`.

    Args:
        q, out: float32 [B, num_heads, head_dim].
        k_cache, v_cache, scale: as for `attend_part`.
        block_tables: int32 [B, most blocks]. context_lens: int32 [B], the query token included.
        num_splits: parts into which each context is cut.
    """
    batch, num_heads, head_dim = q.shape
    block_size = k_cache.shape[1]
    accs = np.empty((batch, num_splits, num_heads, head_dim), np.float32)
    largests = np.empty((batch, num_splits, num_heads), np.float32)
    totals = np.empty((batch, num_splits, num_heads), np.float32)
    for item in prange(batch * num_splits):
        b, split = item // num_splits, item % num_splits
        num_blocks = (context_lens[b] + block_size - 1) // block_size
        blocks_per_split = (num_blocks + num_splits - 1) // num_splits
        first, last = split * blocks_per_split, min(num_blocks, (split + 1) * blocks_per_split)
        acc, largest, total = accs[b, split], largests[b, split], totals[b, split]
        attend_part(
            q[b], k_cache, v_cache, block_tables[b], context_lens[b], first, last, scale, acc, largest, total
        )
        if num_splits == 1:
            merge_parts(accs[b], largests[b], totals[b], out[b])
    if num_splits > 1:  # few requests, so this is little work
        for b in range(batch):
            merge_parts(accs[b], largests[b], totals[b], out[b])


def splits_for(batch: int, num_threads: int) -> int:
    """Into how many parts to cut each context: a few items of work for each core, and no more, since merging costs as well."""
    return max(1, -(-2 * num_threads // batch))


class CompiledDecode:
    """Decode steps of a paged cache with the kernel: from tensors to its arrays and back."""

    def __init__(self, storage: KVStorage) -> None:
        self._scale = np.float32(storage.head_dim**-0.5)
        use_threads_of_torch()
        # The kernel reads the memory of the tensors as numpy arrays (bfloat16 as its 16 bits).
        data = stored_bits(storage.data).numpy()
        self._k_cache, self._v_cache = list(data[0]), list(data[1])

    def begin_step(self, block_tables: np.ndarray, context_lens: np.ndarray) -> None:
        self._block_tables, self._context_lens = block_tables, context_lens

    def attend(self, layer: int, q: Tensor) -> Tensor:
        out = torch.empty(q.shape, dtype=torch.float32)
        paged_decode_cpu(
            q.float().contiguous().numpy(),
            self._k_cache[layer],
            self._v_cache[layer],
            self._block_tables,
            self._context_lens,
            self._scale,
            splits_for(len(q), torch.get_num_threads()),
            out.numpy(),
        )
        return out.to(q.dtype)
