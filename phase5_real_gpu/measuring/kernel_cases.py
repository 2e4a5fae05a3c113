"""The cases of the kernel benchmark: shapes, work, data and expected results.

A case consists of a shape and lengths. They determine the operations and bytes, and with the limits of a machine the shortest
possible time. The expected result is that of Phase 2's `attention` in float32, request by request. A kernel with another
result gets no figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, cycle, islice, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from phase2_attention_kvcache.measuring.roofline import Work
from phase2_attention_kvcache.model.attention import attention
from phase5_real_gpu.ladder.counted_loads import random_step
from phase5_real_gpu.ladder.ladder_rungs import Shape
from phase5_real_gpu.measuring.measurements import NotHere

# Largest relative error of a head's output. Rounding gives about 0.003 in bfloat16; one missing token among
# thousands gives more than 0.02 in the head with the largest weight on it.
LARGEST_ERROR = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}


class Heads(NamedTuple):
    """The shape of attention in one layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 16


LLAMA_8B = Heads(32, 8, 128)
GPT2 = Heads(12, 12, 64)


@dataclass(frozen=True)
class AttentionCase:
    """Attention over blocks: `query_lens` new tokens of each request, with `context_lens` tokens in all.

    Attributes:
        name: of the measurement. title: for people.
        dtype: of queries and results. kv_dtype: of the cache, if it is another.
    """

    name: str
    title: str
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    heads: Heads = LLAMA_8B
    dtype: str = "bfloat16"
    kv_dtype: str = ""

    @property
    def is_decode(self) -> bool:
        return max(self.query_lens) == 1

    @property
    def cache_dtype(self) -> torch.dtype:
        return getattr(torch, self.kv_dtype or self.dtype)

    @property
    def work(self) -> Work:
        """Operations: 4 for each pair of (query, key) numbers, two for the score and two for the weighted sum.

        Bytes: keys, values, queries, results and block tables, once each. Intermediate results are not counted.
        """
        h = self.heads
        pairs = sum(
            n * (c - n) + n * (n + 1) // 2  # n new tokens see the c - n before them, and themselves causally
            for n, c in zip(self.query_lens, self.context_lens)
        )
        kv = 2 * sum(self.context_lens) * h.num_kv_heads * h.head_dim * self.cache_dtype.itemsize
        q_and_out = 2 * sum(self.query_lens) * h.num_heads * h.head_dim * getattr(torch, self.dtype).itemsize
        tables = 4 * sum(-(-c // h.block_size) for c in self.context_lens)
        return Work(4 * h.num_heads * h.head_dim * pairs, kv + q_and_out + tables)


@dataclass(frozen=True)
class WriteCase:
    """Storing the keys and values of `tokens` new tokens: each is read once and written once."""

    name: str
    title: str
    tokens: int
    heads: Heads = LLAMA_8B
    dtype: str = "bfloat16"

    @property
    def work(self) -> Work:
        numbers = 2 * self.tokens * self.heads.num_kv_heads * self.heads.head_dim
        return Work(0, 2 * numbers * getattr(torch, self.dtype).itemsize + 8 * self.tokens)


@dataclass(frozen=True)
class GemmCase:
    """[rows, inputs] x [inputs, outputs]. kind: the weights' format, of `quantized_formats.py`; "": that of dtype."""

    name: str
    title: str
    kind: str = "int4"
    rows: int = 1
    inputs: int = 4096
    outputs: int = 4096
    dtype: str = "bfloat16"

    @property
    def work(self) -> Work:
        """Weights, inputs and results once; int4: codes of half a byte, and 3 bytes of scale and zero point for each 32."""
        itemsize = getattr(torch, self.dtype).itemsize
        of_weight = 0.5 + 3 / 32 if self.kind else itemsize
        moved = self.rows * (self.inputs + self.outputs) * itemsize
        return Work(
            2 * self.rows * self.inputs * self.outputs, self.inputs * self.outputs * of_weight + moved
        )


def decode_case(name: str, title: str, context_lens: Sequence[int], **more) -> AttentionCase:
    return AttentionCase(name, title, (1,) * len(context_lens), tuple(context_lens), **more)


def skewed_lengths(requests: int, total: int, pattern=(0.1, 0.4, 0.5, 1.0, 0.2)) -> list[int]:
    """Lengths that repeat these proportions and add up to exactly `total`.

    >>> skewed_lengths(5, 2200)
    [100, 400, 500, 1000, 200]
    """
    sums = list(accumulate(islice(cycle(pattern), requests), initial=0.0))
    return [end - start for start, end in pairwise(round(total * so_far / sums[-1]) for so_far in sums)]


K = 1024
DECODE_B64 = decode_case("decode-b64-4k", "decode, 64 users x 4k", [4 * K] * 64)
DECODE_B1_32K = decode_case("decode-b1-32k", "decode, 1 user x 32k", [32 * K])
DECODE_B1_4K = decode_case("decode-b1-4k", "decode, 1 user x 4k", [4 * K])
DECODE_SKEWED = decode_case("decode-skewed", "decode, 64 unequal", skewed_lengths(64, 64 * 4 * K))
DECODE_ONE_LONG = decode_case("decode-one-long", "decode, 128k beside 63 short", [128 * K] + [200] * 63)
DECODE_FP8 = replace(
    DECODE_B64, name="decode-fp8-b64-4k", title="decode, fp8 KV, 64 x 4k", kv_dtype="float8_e4m3fn"
)
PREFILL_8K = AttentionCase("prefill-8k", "prefill, 8k tokens", (8 * K,), (8 * K,))
WRITE_8K = WriteCase("write-kv-8k", "write KV, 8k tokens", 8 * K)
GEMM_INT4 = GemmCase("gemm-int4-b1", "GEMM int4, 1 x 4096 x 4096")
PYTHON_GPU = decode_case("decode-b1-512", "decode, 1 user x 512", [512])

CPU_DECODE = decode_case(
    "cpu-decode-b16-512", "decode, 16 users x 512", [512] * 16, heads=GPT2, dtype="float32"
)
CPU_DECODE_B1 = decode_case("cpu-decode-b1-8k", "decode, 1 user x 8k", [8 * K], heads=GPT2, dtype="float32")
CPU_PREFILL = AttentionCase("cpu-prefill-1k", "prefill, 1k tokens", (K,), (K,), GPT2, "float32")
PYTHON_CPU = decode_case("cpu-decode-b1-1k", "decode, 1 user x 1k", [K], heads=GPT2, dtype="float32")


# ---------------------------------------------------------------------- data


@dataclass
class AttentionInputs:
    """The tensors of a case, made by `random_step`: blocks are scattered, and slots without a token hold NaN.

    Attributes:
        q: [N, num_heads, head_dim]. k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        block_tables: [B, most blocks] int32; entries after a request's blocks are invalid.
        context_lens: [B] int32. cu_query_lens: [B + 1] int32.
    """

    case: AttentionCase
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    context_lens: Tensor
    cu_query_lens: Tensor

    @property
    def device(self) -> str:
        return self.q.device.type

    def rows_of(self, request: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one request in order, [context_len, num_kv_heads, head_dim] float32."""
        n = self.case.context_lens[request]
        blocks = self.block_tables[request, : -(-n // self.case.heads.block_size)].long()
        # As bytes, because not all devices can index fp8.
        pools = (cache.view(torch.uint8)[blocks].view(cache.dtype) for cache in (self.k_cache, self.v_cache))
        keys, values = (pool.flatten(0, 1)[:n].float() for pool in pools)
        return keys, values


def make_inputs(case: AttentionCase, device: str, seed: int = 0) -> AttentionInputs:
    """Random data: with zeros a GPU draws less power and clocks higher than with real data."""
    shape = Shape(case.context_lens, *case.heads)
    q, k_cache, v_cache, tables, lens = random_step(
        shape, getattr(torch, case.dtype), device, seed, case.query_lens
    )
    caches = (cache.to(case.cache_dtype) for cache in (k_cache, v_cache))
    starts = torch.tensor([0, *case.query_lens]).cumsum(0).to(device, torch.int32)
    return AttentionInputs(case, q, *caches, tables, lens, starts)


# ---------------------------------------------------------------------- the right answer


class WrongAnswer(NotHere):
    """A kernel's result is wrong, so it gets no figure."""


@torch.inference_mode()
def reference(inputs: AttentionInputs, most_queries: int = 256) -> Tensor:
    """[N, num_heads, head_dim] float32, on the same device: Phase 2's `attention`.

    A long prompt is computed in chunks of `most_queries` tokens, because all its scores would not fit in memory.
    """
    out, start = [], 0
    for i, (query_len, context_len) in enumerate(zip(inputs.case.query_lens, inputs.case.context_lens)):
        keys, values = inputs.rows_of(i)
        q = inputs.q[start : start + query_len].float()
        for first in range(0, query_len, most_queries):
            chunk = q[first : first + most_queries]
            seen = context_len - query_len + first + len(chunk)
            out.append(attention(chunk, keys[:seen], values[:seen]))
        start += query_len
    return torch.cat(out)


def check_answer(out: Tensor, expected: Tensor, dtype: str) -> float:
    """The largest relative error of any token's head; up to LARGEST_ERROR is accepted.

    Raises:
        WrongAnswer: the error is larger than rounding explains, or not a number.
    """
    if out.shape != expected.shape:
        raise WrongAnswer(f"wrong: the result has shape {list(out.shape)}, not {list(expected.shape)}")
    off = (out.float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    error = float(off.max())
    if not error <= LARGEST_ERROR[dtype]:  # NaN is not, either
        raise WrongAnswer(f"wrong by {error:.1%} of a head's output, so it gets no figure")
    return error
