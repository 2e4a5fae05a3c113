"""Decode attention on a CPU that reads keys and values in place.

The obvious way gathers the scattered blocks of every request into one row and attends over that: it reads each key, writes
it, and reads it again. This kernel copies nothing. It is `paged_attention_loops` of `paged_attention.py` once more: the same
loops, compiled to machine code by numba, with the blocks shared out among the cores.

Contexts differ in length, and a core that is done has to wait for the others. So each core gets equally many blocks: the blocks of
all requests are laid side by side and cut into as many equal shares as there are cores. A request on a border between shares is cut
("split KV"): each piece has its own online softmax, and the pieces are merged at the end.

Sources: Dao et al., "Flash-Decoding" (2023); Ye et al., "FlashInfer" (2025), for shares of equal work.
"""

from collections.abc import Sequence

# torch before numba: both then use the same OpenMP threads. Two sets of threads on the same cores wait for each other, and
# everything takes ten times as long.
import torch  # isort: skip
import numba
import numpy as np
from numba import njit, prange, types
from numba.core.codegen import get_host_cpu_features
from numba.extending import overload
from torch import Tensor

from phase2_attention_kvcache.model.caches import AttentionRule
from phase3_paged_attention.compiled.arrays import stored_bits
from phase3_paged_attention.paging.kv_storage import KVStorage

numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
if numba.config.CPU_FEATURES is None and "+avx512f" in (features := get_host_cpu_features()):
    # On Intel's processors LLVM prefers registers of 256 bits to those of 512: weights were read a quarter to a half slower.
    numba.config.CPU_FEATURES = features + ",-prefer-256-bit"


def use_threads_of_torch() -> None:
    """Give numba's kernels torch's number of threads, and set it back: starting numba's threads changes it, since both share them."""
    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    torch.set_num_threads(threads)


use_threads_of_torch()  # before the first kernel: it would start the threads, and torch's number would be lost


def widen(x):
    """A stored number as float32. bfloat16 comes as its 16 bits, which are the upper half of a float32."""
    raise NotImplementedError("only compiled code calls it")


@overload(widen, inline="always")
def _widen(x):
    if x == types.uint16:
        return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    return lambda x: np.float32(x)


def narrow(x, array):
    """The inverse: a float32, rounded to the number format of an array (ties to even)."""
    raise NotImplementedError("only compiled code calls it")


@overload(narrow, inline="always")
def _narrow(x, array):
    if array.dtype != types.uint16:
        return lambda x, array: np.float32(x)

    def upper_half(x, array):
        bits = np.float32(x).view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        return np.uint16((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))

    return upper_half


@njit(fastmath=True, cache=True, error_model="numpy")
def exp(x):
    """e ** x, float32, within one part in four million. Compiled for 8 or 16 numbers at a time, which `np.exp` is not.

    x = n ln 2 + r with a whole number n and a small r, so e^x = 2^n e^r; and e^r is a short sum.
    """
    x = min(max(x, np.float32(-87)), np.float32(88))
    n = np.rint(x * np.float32(1.4426950408889634))
    r = x - n * np.float32(0.6931471805599453)
    term = np.float32(1)
    for i in (7, 6, 5, 4, 3, 2, 1):  # 1 + r (1 + r/2 (1 + r/3 (...)))
        term = np.float32(1) + term * r * np.float32(1 / i)
    return term * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


EVERYTHING = np.int32(2**31 - 1)  # as a window: wider than any context
# As many as cores, not threads: so the order of sums does not change with the threads.
NUM_SHARES = numba.config.NUMBA_NUM_THREADS


@njit(fastmath=True, cache=True, error_model="numpy")
def attend_blocks(
    q, k_cache, v_cache, table, context_len, first_seen, first, end, scale, softcap, acc, largest, total
):
    """Attention of one query token over some of a request's blocks. Writes `acc`, `largest` and `total`.

    Args:
        q: [num_heads or more, head_dim], float32, or bfloat16 as uint16.
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], float32, or bfloat16 as uint16.
        table: int32, the request's blocks. context_len: its tokens, the query token included.
        first_seen: the first token that the query sees. first, end: of the blocks in `table`.
        scale: float32. softcap: float32; 0: scores are left as they are.
        acc: float32 [num_heads, head_dim], the weighted values, each weight being exp(score - largest).
        largest, total: float32 [num_heads], the largest score, and the sum of weights.
    """
    num_heads, head_dim = acc.shape
    block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = num_heads // num_kv_heads  # query heads that share a KV head
    largest[:], total[:], acc[:] = np.float32(-1e30), np.float32(0), np.float32(0)
    query = np.empty(acc.shape, np.float32)
    for head in range(num_heads):
        for i in range(head_dim):
            query[head, i] = widen(q[head, i]) * scale
    scores, shrink = np.empty((num_heads, block_size), np.float32), np.empty(num_heads, np.float32)
    flat = scores.reshape(-1)
    for logical in range(first, end):
        keys, values = k_cache[table[logical]], v_cache[table[logical]]
        begin = max(0, first_seen - logical * block_size)
        stop = min(block_size, context_len - logical * block_size)
        scores[:] = np.float32(-1e30)
        # 1. Scores. What lies behind the last token may be no number, so it is not read.
        for t in range(begin, stop):
            for kv in range(num_kv_heads):
                key = keys[t, kv]
                for head in range(kv * group, kv * group + group):
                    s = np.float32(0)
                    for i in range(head_dim):
                        s += query[head, i] * widen(key[i])
                    scores[head, t] = s
        if softcap > 0:  # softcap x tanh(s / softcap), with tanh(x) = 1 - 2 / (e^2x + 1)
            for i in range(len(flat)):
                rest = np.float32(2) / (exp(np.float32(2) * flat[i] / softcap) + np.float32(1))
                flat[i] = softcap * (np.float32(1) - rest)
        # 2. The online softmax, one block per pass; all exponentials in one long loop.
        for head in range(num_heads):
            new = largest[head]
            for t in range(begin, stop):
                new = max(new, scores[head, t])
            shrink[head], largest[head] = exp(largest[head] - new), new
            for t in range(block_size):
                scores[head, t] -= new
        for i in range(len(flat)):
            flat[i] = exp(flat[i])
        for head in range(num_heads):
            added = np.float32(0)
            for t in range(begin, stop):
                added += scores[head, t]
            total[head] = total[head] * shrink[head] + added
        # 3. The weighted values, of four tokens at a time: a sum is then read and written once for four products.
        for head in range(num_heads):
            for i in range(head_dim):
                acc[head, i] *= shrink[head]
        fours = stop - (stop - begin) % 4
        for t in range(begin, fours, 4):
            for kv in range(num_kv_heads):
                v0, v1, v2, v3 = values[t, kv], values[t + 1, kv], values[t + 2, kv], values[t + 3, kv]
                for head in range(kv * group, kv * group + group):
                    sums, w = acc[head], scores[head]
                    w0, w1, w2, w3 = w[t], w[t + 1], w[t + 2], w[t + 3]
                    for i in range(head_dim):
                        sums[i] += w0 * widen(v0[i]) + w1 * widen(v1[i])
                        sums[i] += w2 * widen(v2[i]) + w3 * widen(v3[i])
        for t in range(fours, stop):
            for kv in range(num_kv_heads):
                value = values[t, kv]
                for head in range(kv * group, kv * group + group):
                    sums, weight = acc[head], scores[head, t]
                    for i in range(head_dim):
                        sums[i] += weight * widen(value[i])


@njit(parallel=True, fastmath=True, cache=True, error_model="numpy")
def paged_decode_cpu(
    q, rows, k_cache, v_cache, block_tables, context_lens, scale, window, softcap, num_shares, out
):
    """One query token for each request. Writes `out`, in these rows.

    Args:
        q: [N, num_heads or more, head_dim], float32, or bfloat16 as uint16. out: [N, num_heads, head_dim].
        rows: of q and `out`, [B], one for each request.
        k_cache, v_cache, scale, softcap: as for `attend_blocks`.
        block_tables: int32 [B, most blocks]. context_lens: int32 [B], the query token included.
        window: tokens that a query sees, itself included; EVERYTHING: all.
        num_shares: equal shares of the blocks, for as many cores.
    """
    batch, (_, num_heads, head_dim) = len(rows), out.shape
    block_size = k_cache.shape[1]
    starts = np.zeros(batch + 1, np.int64)  # of each request's blocks, laid side by side
    for b in range(batch):
        unseen = max(0, context_lens[b] - window) // block_size
        starts[b + 1] = starts[b] + (context_lens[b] + block_size - 1) // block_size - unseen
    size = (starts[batch] + num_shares - 1) // num_shares
    # The piece of request b in a share has the number b + share. No two have the same: from one to the next, b or share grows.
    accs = np.empty((batch + num_shares, num_heads, head_dim), np.float32)
    largests = np.empty((batch + num_shares, num_heads), np.float32)
    totals = np.empty((batch + num_shares, num_heads), np.float32)
    for index in prange(num_shares):
        share = np.int64(index)
        for b in range(batch):
            first, end = max(starts[b], share * size), min(starts[b + 1], share * size + size)
            if first < end:
                first_seen, piece = max(0, context_lens[b] - window), b + share
                shift = first_seen // block_size - starts[b]
                attend_blocks(
                    q[rows[b]], k_cache, v_cache, block_tables[b], context_lens[b], first_seen, first + shift, end + shift,
                    scale, softcap, accs[piece], largests[piece], totals[piece],
                )  # fmt: skip
    for index in prange(batch):
        b = np.int64(index)
        pieces = slice(b + starts[b] // size, b + (starts[b + 1] - 1) // size + 1)
        merge_pieces(accs[pieces], largests[pieces], totals[pieces], out[rows[b]])


@njit(fastmath=True, cache=True, error_model="numpy")
def merge_pieces(accs, largests, totals, out):
    """Put a request's pieces together. accs: [pieces, num_heads, head_dim]. largests, totals: [pieces, num_heads]. Writes `out`."""
    wide = np.empty(out.shape[1], np.float32)
    for head in range(len(out)):
        largest, total = np.float32(-1e30), np.float32(0)
        for piece in range(len(totals)):
            largest = max(largest, largests[piece, head])
        wide[:] = np.float32(0)
        for piece in range(len(totals)):
            shrink = exp(largests[piece, head] - largest)
            total += shrink * totals[piece, head]
            for i in range(len(wide)):
                wide[i] += shrink * accs[piece, head, i]
        for i in range(len(wide)):
            out[head, i] = narrow(wide[i] / total, out)


def as_numbers(rule: AttentionRule) -> tuple[np.float32, np.int32, np.float32]:
    """Scale, window and soft cap as compiled code reads them."""
    scale, window, softcap = rule
    return np.float32(scale), EVERYTHING if window is None else np.int32(window), np.float32(softcap or 0)


class CompiledDecode:
    """Decode steps of a paged cache with the kernel: from tensors to its arrays and back."""

    def __init__(self, storage: KVStorage, rules: Sequence[AttentionRule]) -> None:
        self.dtype, self.rules = storage.data.dtype, [as_numbers(rule) for rule in rules]
        self.k_cache = [stored_bits(layer) for layer in storage.k_cache]
        self.v_cache = [stored_bits(layer) for layer in storage.v_cache]
        self.block_tables, self.context_lens = np.zeros((0, 1), np.int32), np.zeros(0, np.int32)

    def begin_step(self, block_tables: np.ndarray, context_lens: np.ndarray) -> None:
        use_threads_of_torch()
        self.block_tables, self.context_lens = block_tables, context_lens

    def attend(self, layer: int, q: Tensor) -> Tensor:
        queries = q.to(self.dtype).contiguous()
        out = torch.empty_like(queries)
        rows = np.arange(len(q))
        paged_decode_cpu(stored_bits(queries), rows, *self.cached(layer), stored_bits(out))
        return out.to(q.dtype)

    def cached(self, layer: int) -> tuple:
        """Arguments of `paged_decode_cpu`, from `k_cache` to `num_shares`."""
        where = (self.k_cache[layer], self.v_cache[layer], self.block_tables, self.context_lens)
        return (*where, *self.rules[layer], NUM_SHARES)
