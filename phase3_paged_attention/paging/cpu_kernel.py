"""Decode attention on a CPU that reads keys and values where they lie.

The obvious way gathers the scattered blocks of every request into one row and attends over that. It reads
each key, writes it, and reads it again. For 64 users that takes ten times as long as attending in place.

This kernel copies nothing. It is `paged_attention_loops` of `paged_attention.py` over again: the same
loops in the same order, compiled to machine code by numba, with the requests shared out among the cores.
Keys are read in the order in which they lie in memory, all heads of a token at a time, which is the pace
that a memory likes best.

A single request with a long context would keep one core busy and let the others watch. So its context is
cut into parts ("split KV"), each part has its own online softmax, and the parts are merged at the end. The
same idea keeps a GPU busy in Phase 5; there, the paper is Dao et al., "Flash-Decoding" (2023).
"""

from phase2_attention_kvcache.model.numba_setup import exp, stored_bits, use_threads_of_torch, widen  # isort: skip
import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from phase3_paged_attention.paging.kv_storage import KVStorage


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
    for head in range(num_heads):
        largest[head], total[head] = np.float32(-1e30), np.float32(0)
        for i in range(head_dim):
            acc[head, i] = np.float32(0)
    scores = np.empty((num_heads, block_size), np.float32)
    for logical in range(first, last):
        physical = block_table[logical]
        tokens = min(block_size, context_len - logical * block_size)
        for t in range(tokens):
            for kv_head in range(num_kv_heads):
                for head in range(kv_head * group, (kv_head + 1) * group):
                    score = np.float32(0)
                    for i in range(head_dim):
                        score += q[head, i] * widen(k_cache[physical, t, kv_head, i])
                    scores[head, t] = score * scale
        # The online softmax, a block at a time.
        for head in range(num_heads):
            new_largest = largest[head]
            for t in range(tokens):
                new_largest = max(new_largest, scores[head, t])
            shrink = exp(largest[head] - new_largest)
            largest[head] = new_largest
            total[head] *= shrink
            for i in range(head_dim):
                acc[head, i] *= shrink
            for t in range(tokens):
                scores[head, t] = exp(scores[head, t] - new_largest)
                total[head] += scores[head, t]
        for t in range(tokens):
            for kv_head in range(num_kv_heads):
                for head in range(kv_head * group, (kv_head + 1) * group):
                    weight = scores[head, t]
                    for i in range(head_dim):
                        acc[head, i] += weight * widen(v_cache[physical, t, kv_head, i])


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
        # A few items of work for each core, and no more: merging parts costs something as well.
        num_splits = max(1, -(-2 * torch.get_num_threads() // len(q)))
        paged_decode_cpu(
            q.float().contiguous().numpy(),
            self._k_cache[layer],
            self._v_cache[layer],
            self._block_tables,
            self._context_lens,
            self._scale,
            num_splits,
            out.numpy(),
        )
        return out.to(q.dtype)
