"""Implementations of the same attention: the course's own, PyTorch's and FlashInfer's, behind one interface.

A runner takes one or several layers (same tables and lengths, keys and values of their own) and returns one
call for each. Work that can be done once per step, and not once per layer, is timed apart: FlashInfer calls it `plan`.
SDPA gets its keys contiguous, not in blocks: its figure is the ceiling that paging costs something against.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from phase2_attention_kvcache.model import GPT2_124M
from phase3_paged_attention.paging import (
    PagedKVCache,
    StepLayout,
    compiled_kernel,
    paged_attention_loops,
    paged_attention_vectorised,
)
from phase5_real_gpu.kernels import paged_decode, paged_prefill  # before PyTorch's own imports of Triton
from phase5_real_gpu.kernels.decode import plan_decode
from phase5_real_gpu.kernels.triton_setup import capability
from phase5_real_gpu.measuring.kernel_cases import AttentionInputs
from phase5_real_gpu.measuring.measurements import NotHere

Call = Callable[[], Tensor]
Layers = Sequence[AttentionInputs]


class Prepared(NamedTuple):
    """calls: one a layer, each returns [N, num_heads, head_dim]. plan: what is done once a step."""

    calls: list[Call]
    plan: Call | None = None


@dataclass(frozen=True)
class Runner:
    """One way to compute attention.

    Attributes:
        prefix: of the measurement's name, "" for the course's production kernel.
        title: for people.
        prepare: layers -> calls. Raises NotHere.
        slack: how much more than others it may round. Those that round after every step get 3.
    """

    prefix: str
    title: str
    prepare: Callable[[Layers], Prepared]
    slack: float = 1.0


def copies_in_memory(inputs: AttentionInputs, layers: int) -> list[AttentionInputs]:
    """The same numbers again in other memory, so that a cache cannot help."""

    def copy() -> AttentionInputs:
        return replace(inputs, k_cache=inputs.k_cache.clone(), v_cache=inputs.v_cache.clone())

    return [inputs, *(copy() for _ in range(layers - 1))]


# ---------------------------------------------------------------------- the course's own


def triton_kernel(layers: Layers) -> Prepared:
    """`paged_decode`, or `paged_prefill` for prompts."""
    first = layers[0]
    make_plan = partial(plan_decode, first.case.context_lens, first.q, first.k_cache)
    plan = make_plan() if first.case.is_decode else None

    def call(x: AttentionInputs, out: Tensor) -> Tensor:
        scales = dict(scale=x.scale * x.k_scale, out_scale=x.v_scale)  # of an fp8 cache
        where = (x.q, x.k_cache, x.v_cache, x.block_tables)
        if plan is None:
            return paged_prefill(*where, x.cu_query_lens, x.context_lens, **scales, out=out)
        return paged_decode(*where, x.context_lens, **scales, plan=plan, out=out)

    return Prepared(
        [partial(call, x, torch.empty_like(x.q)) for x in layers], make_plan if plan is not None else None
    )


def phase3_cache(layers: Layers, use_kernel: bool) -> Prepared:
    """`PagedKVCache.attend`: compiled and in place, or copied together first."""
    return Prepared([_phase3_call(x, use_kernel) for x in layers])


def _phase3_call(x: AttentionInputs, use_kernel: bool) -> Call:
    if use_kernel and (compiled_kernel() is None or x.device != "cpu"):
        raise NotHere("numba is not installed, so Phase 3's compiled kernel is missing: pip install numba")
    h, lens, new = x.case.heads, x.case.context_lens, x.case.query_lens
    shape = dict(num_heads=h.num_heads, num_kv_heads=h.num_kv_heads, head_dim=h.head_dim)
    config = replace(GPT2_124M, num_layers=1, **shape)
    cache = PagedKVCache(config, len(x.k_cache), h.block_size, x.q.dtype, x.device, use_kernel=use_kernel)
    cache.storage.k_cache[0].copy_(x.k_cache)
    cache.storage.v_cache[0].copy_(x.v_cache)
    tables = [table[: -(-n // h.block_size)] for table, n in zip(x.block_tables.tolist(), lens)]
    slots = [
        table[t // h.block_size] * h.block_size + t % h.block_size
        for table, n, count in zip(tables, lens, new)
        for t in range(n - count, n)
    ]
    slot_mapping = torch.tensor(slots, device=x.device)
    # `attend` stores the new tokens first: these are in place already, and are stored once more.
    k, v = (blocks.flatten(0, 1)[slot_mapping] for blocks in (x.k_cache, x.v_cache))
    cache.begin_step(StepLayout(list(new), list(lens), tables, slot_mapping))
    return lambda: cache.attend(0, x.q, k, v)


def vectorised(layers: Layers) -> Prepared:
    def call(x: AttentionInputs) -> Tensor:
        lens = (x.case.query_lens, x.case.context_lens)
        return paged_attention_vectorised(x.q, x.k_cache, x.v_cache, x.block_tables, *lens, x.scale)

    return Prepared([partial(call, x) for x in layers])


def plain_loops(layers: Layers) -> Prepared:
    """Decode with `paged_attention_loops`, on lists as it wants them."""

    def prepare(x: AttentionInputs) -> Call:
        k, v, tables = x.k_cache.tolist(), x.v_cache.tolist(), x.block_tables.tolist()
        rows = list(zip(x.q.tolist(), tables, x.case.context_lens, strict=True))
        return lambda: torch.tensor(
            [paged_attention_loops(q, k, v, table, n) for q, table, n in rows], device=x.q.device
        )

    return Prepared([prepare(x) for x in layers])


# ---------------------------------------------------------------------- PyTorch


def _in_one_row(x: AttentionInputs) -> tuple[Tensor, Tensor]:
    """Keys and values as [B, num_kv_heads, context_len, head_dim], side by side for each head."""
    lens = x.case.context_lens
    if len(set(lens)) > 1 or x.k_scale != 1:
        raise NotHere("it takes equal lengths only, and no fp8 keys")
    rows = [x.rows_of(i) for i in range(len(lens))]
    keys, values = (torch.stack([row[i] for row in rows]).transpose(1, 2) for i in (0, 1))
    return keys.to(x.q.dtype).contiguous(), values.to(x.q.dtype).contiguous()


def _fused(*qkv: Tensor, **options: bool) -> Tensor:
    """With every backend that PyTorch has, cuDNN's too, which our own models leave out (caches.py)."""
    from torch.nn.attention import SDPBackend as Backend
    from torch.nn.attention import sdpa_kernel

    with sdpa_kernel(
        [Backend.CUDNN_ATTENTION, Backend.FLASH_ATTENTION, Backend.EFFICIENT_ATTENTION, Backend.MATH]
    ):
        return F.scaled_dot_product_attention(*qkv, **options)


def sdpa(layers: Layers) -> Prepared:
    """PyTorch's scaled_dot_product_attention on keys that lie in one row."""

    def prepare(x: AttentionInputs) -> Call:
        keys, values = _in_one_row(x)
        h, batch, shape = x.case.heads, len(x.case.context_lens), x.q.shape
        if x.case.is_decode:
            # The queries that share a KV head as rows of one matrix: each key is read once for all of them.
            rows = x.q.view(batch, h.num_kv_heads, -1, h.head_dim)
            return lambda: _fused(rows, keys, values).reshape(shape)
        q = x.q.view(batch, -1, h.num_heads, h.head_dim).transpose(1, 2)
        options = dict(is_causal=True, enable_gqa=h.num_heads != h.num_kv_heads)
        return lambda: _fused(q, keys, values, **options).transpose(1, 2).reshape(shape)

    return Prepared([prepare(x) for x in layers])


# ---------------------------------------------------------------------- FlashInfer


def page_lists(x: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
    """FlashInfer's form of the block tables.

    Returns:
        where each request's pages begin in the list of all pages, [B + 1]; the pages one after the other;
        how many tokens each request's last page holds, [B]. All int32.
    """
    size = x.case.heads.block_size
    needed = [-(-n // size) for n in x.case.context_lens]
    starts = list(itertools.accumulate(needed, initial=0))
    pages = torch.cat([table[:n] for table, n in zip(x.block_tables, needed)])
    last = [(n - 1) % size + 1 for n in x.case.context_lens]
    device = x.q.device
    return (
        torch.tensor(starts, dtype=torch.int32, device=device),
        pages.to(torch.int32),
        torch.tensor(last, dtype=torch.int32, device=device),
    )


def flashinfer(layers: Layers) -> Prepared:
    """FlashInfer's kernels on the same blocks. On Hopper it picks its backend itself, because fa3 was written for that card;
    elsewhere it is fa2."""
    try:
        import flashinfer
    except ImportError:
        raise NotHere(
            "FlashInfer is not installed: pip install flashinfer-python==0.6.4 (it compiles its kernels with nvcc)"
        ) from None
    x = layers[0]
    h, (starts, pages, last) = x.case.heads, page_lists(x)
    room = torch.zeros(256 * 2**20, dtype=torch.uint8, device=x.q.device)
    pool = (starts, pages, last, h.num_heads, h.num_kv_heads, h.head_dim, h.block_size)
    kinds = dict(q_data_type=x.q.dtype, kv_data_type=x.k_cache.dtype)
    backend = "auto" if capability()[0] == 9 else "fa2"
    if x.case.is_decode:
        make = partial(flashinfer.BatchDecodeWithPagedKVCacheWrapper, use_tensor_cores=True)
        wrapper = make(room, "NHD", backend=backend)
        plan = partial(wrapper.plan, *pool, **kinds)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(room, "NHD", backend=backend)
        plan = partial(wrapper.plan, x.cu_query_lens, *pool, causal=True, **kinds)
    plan()
    scales = {} if x.k_scale == 1 else dict(k_scale=x.k_scale, v_scale=x.v_scale)
    return Prepared([partial(wrapper.run, y.q, (y.k_cache, y.v_cache), **scales) for y in layers], plan)


TRITON = Runner("", "this course, Triton", triton_kernel)
COMPILED = Runner("", "compiled, in place", lambda layers: phase3_cache(layers, True))
GATHER = Runner("gather-", "copied, then PyTorch", lambda layers: phase3_cache(layers, False))
PROMPT = Runner("", "Phase 3 (SDPA inside)", lambda layers: phase3_cache(layers, False))
VECTORISED = Runner("vectorised-", "vectorised", vectorised, slack=3.0)
PYTHON = Runner("python-", "plain Python loops", plain_loops)
SDPA = Runner("sdpa-", "PyTorch SDPA, one row", sdpa)
FLASHINFER = Runner("flashinfer-", "FlashInfer", flashinfer)
