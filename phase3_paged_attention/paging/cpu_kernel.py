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

These two innermost loops are written as instructions, in `cpu_registers.py`.

A single request with a long context would keep one core busy and let the others watch. So its context is
cut into parts ("split KV"), each part has its own online softmax, and the parts are merged at the end. The
same idea keeps a GPU busy in Phase 5; there, the paper is Dao et al., "Flash-Decoding" (2023).
"""

from phase2_attention_kvcache.model.numba_setup import exp, fetch, stored_bits, use_threads_of_torch, widen  # isort: skip
from collections.abc import Sequence

import numpy as np
import torch
from numba import config, njit, prange
from torch import Tensor

from phase2_attention_kvcache.model.caches import AttentionRule
from phase3_paged_attention.paging.cpu_registers import LANES, TOKENS_AT_ONCE, add_values, score_tokens
from phase3_paged_attention.paging.kv_storage import KVStorage


@njit(fastmath=True, cache=True, error_model="numpy")
def part_of(context_len, window, block_size, split, num_splits):
    """Which blocks a split takes of a request: its first one, the one behind its last, and the first token that is seen.

    >>> part_of(100, 50, 16, 1, 2)      # tokens 50 to 99, blocks 3 to 6; the second half of these
    (5, 7, 50)
    """
    first_seen = max(0, context_len - window)
    first_block, end = first_seen // block_size, (context_len + block_size - 1) // block_size
    blocks_per_split = (end - first_block + num_splits - 1) // num_splits
    first = first_block + split * blocks_per_split
    return first, min(end, first + blocks_per_split), first_seen


@njit(fastmath=True, cache=True, error_model="numpy")
def bend(score, softcap):
    """softcap x tanh(score / softcap), for tanh(x) = 1 - 2 / (e^2x + 1)."""
    one = np.float32(1)
    return softcap * (one - np.float32(2) / (exp(np.float32(2) * score / softcap) + one))


@njit(fastmath=True, cache=True, error_model="numpy")
def attend_part(q, k_cache, v_cache, block_table, context_len, part, scale, softcap, acc, largest, total):
    """One query token over some blocks of its request. Writes `acc`, `largest`, `total`; see `merge_parts`.

    Args:
        q: float32 [num_heads, head_dim].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], float32, or bfloat16 as uint16.
        block_table: int32, the request's blocks. context_len: its tokens, the query token included.
        part: see `part_of`. It may have no blocks; and of a window, the first block may hold tokens before the first seen.
        scale: float32, usually 1 / sqrt(head_dim).
        softcap: float32, see `bend`; 0: scores are left as they are.
        acc: float32 [num_heads, head_dim], the weighted values, each weight being exp(score - largest).
        largest: float32 [num_heads], the largest score.
        total: float32 [num_heads], the sum of weights.
    """
    first, last, first_seen = part
    num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = num_heads // num_kv_heads  # query heads that share a KV head
    shared = 4 if group % 4 == 0 else 1  # of them, so many at a time
    for head in range(num_heads):
        largest[head], total[head] = np.float32(-1e30), np.float32(0)
        for i in range(head_dim):
            acc[head, i] = np.float32(0)
    width = block_size + TOKENS_AT_ONCE - 1  # the scores behind those of the last token are not used
    scores, shrink = np.zeros((num_heads, width), np.float32), np.empty(num_heads, np.float32)
    flat_q, flat_k, flat_v = q.reshape(-1), k_cache.reshape(-1), v_cache.reshape(-1)
    flat_scores, flat_acc = scores.reshape(-1), acc.reshape(-1)
    step = num_kv_heads * head_dim
    factor = np.float32(1) if softcap > 0 else scale  # bent scores are scaled already
    whole = head_dim - head_dim % LANES
    line = 64 // k_cache.itemsize  # numbers that one `fetch` brings
    piece = TOKENS_AT_ONCE * step // num_heads  # of the keys, or values, of so many tokens: one for each head
    for logical in range(first, last):
        unseen = max(0, first_seen - logical * block_size)
        block = (block_table[logical] * block_size + unseen) * step  # where its numbers begin
        tokens = min(block_size, context_len - logical * block_size) - unseen
        # Blocks lie anywhere, so a processor cannot guess which one is next, and fetch it by itself. Here the keys of the
        # next tokens are fetched while those of these tokens are multiplied, and then the values of these.
        following = block_table[min(logical + 1, last - 1)] * block_size * step
        for t in range(0, tokens, TOKENS_AT_ONCE):
            these = block + t * step
            ahead = these + TOKENS_AT_ONCE * step if t + TOKENS_AT_ONCE < tokens else following
            for head in range(0, num_heads, shared):
                # Between the products, a piece at a time: who asks for much at once waits.
                for i in range(head * piece, (head + shared) * piece, line):
                    fetch(flat_k, ahead + i)
                    fetch(flat_v, these + i)
                q_at, k_at = head * head_dim, these + head // group * head_dim
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
        if softcap > 0:
            for head in range(num_heads):
                for t in range(tokens):
                    scores[head, t] = bend(scores[head, t] * scale, softcap)
        # The online softmax, a block at a time. All powers of e in one long loop: so the processor takes 16 at a time.
        for head in range(num_heads):
            block_largest = np.float32(-1e30)
            for t in range(tokens):
                block_largest = max(block_largest, scores[head, t])
            new_largest = max(largest[head], block_largest * factor)
            shrink[head], largest[head] = largest[head] - new_largest, new_largest
            for t in range(tokens):
                scores[head, t] = scores[head, t] * factor - new_largest
        for head in range(num_heads):
            shrink[head] = exp(shrink[head])
        for i in range(len(flat_scores)):
            flat_scores[i] = exp(flat_scores[i])
        for head in range(num_heads):
            added = np.float32(0)
            for t in range(tokens):
                added += scores[head, t]
            total[head] = total[head] * shrink[head] + added
            for i in range(head_dim):
                acc[head, i] *= shrink[head]
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
def paged_decode_cpu(
    q, k_cache, v_cache, block_tables, context_lens, scale, window, softcap, num_splits, out
):
    """One query token for each request. Writes `out`.

    Args:
        q, out: float32 [B, num_heads, head_dim].
        k_cache, v_cache, scale, softcap: as for `attend_part`.
        block_tables: int32 [B, most blocks]. context_lens: int32 [B], the query token included.
        window: tokens that a query sees, itself included; EVERYTHING: all.
        num_splits: parts into which each context is cut.
    """
    batch, num_heads, head_dim = q.shape
    block_size = k_cache.shape[1]
    accs = np.empty((batch, num_splits, num_heads, head_dim), np.float32)
    largests = np.empty((batch, num_splits, num_heads), np.float32)
    totals = np.empty((batch, num_splits, num_heads), np.float32)
    for item in prange(batch * num_splits):
        b, split = item // num_splits, item % num_splits
        context_len, table = context_lens[b], block_tables[b]
        part = part_of(context_len, window, block_size, split, num_splits)
        acc, largest, total = accs[b, split], largests[b, split], totals[b, split]
        attend_part(q[b], k_cache, v_cache, table, context_len, part, scale, softcap, acc, largest, total)
        if num_splits == 1:
            merge_parts(accs[b], largests[b], totals[b], out[b])
    if num_splits > 1:  # few requests, so this is little work
        for b in range(batch):
            merge_parts(accs[b], largests[b], totals[b], out[b])


def splits_for(batch: int) -> int:
    """Into how many parts to cut each context: a few items of work for each core, and no more, since merging costs as well.

    The number of cores, and not of threads, which may change from step to step: the same sums are taken in the same order.
    """
    return max(1, -(-2 * config.NUMBA_NUM_THREADS // batch))


EVERYTHING = np.int32(2**31 - 1)  # as a window: wider than any context


def as_numbers(rules: Sequence[AttentionRule]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What compiled code reads: scales (float32), windows (int32) and soft caps (float32) of all layers."""
    scales, windows, softcaps = zip(*rules)
    return (
        np.array(scales, np.float32),
        np.array([EVERYTHING if window is None else window for window in windows], np.int32),
        np.array([softcap or 0 for softcap in softcaps], np.float32),
    )


class CompiledDecode:
    """Decode steps of a paged cache with the kernel: from tensors to its arrays and back."""

    def __init__(self, storage: KVStorage, rules: Sequence[AttentionRule]) -> None:
        self.rules = as_numbers(rules)
        use_threads_of_torch()
        # The kernel reads the memory of the tensors as numpy arrays (bfloat16 as its 16 bits).
        data = stored_bits(storage.data).numpy()
        self._k_cache, self._v_cache = list(data[0]), list(data[1])

    def begin_step(self, block_tables: np.ndarray, context_lens: np.ndarray) -> None:
        self._block_tables, self._context_lens = block_tables, context_lens

    def attend(self, layer: int, q: Tensor) -> Tensor:
        out = torch.empty(q.shape, dtype=torch.float32)
        scales, windows, softcaps = self.rules
        paged_decode_cpu(
            q.float().contiguous().numpy(),
            self._k_cache[layer],
            self._v_cache[layer],
            self._block_tables,
            self._context_lens,
            scales[layer],
            windows[layer],
            softcaps[layer],
            splits_for(len(q)),
            out.numpy(),
        )
        return out.to(q.dtype)
