"""Implementations of the same attention: the course's own, PyTorch's and FlashInfer's, behind one interface.

A runner takes one or several layers (the same tables and lengths, with their own keys and values) and returns one call for
each. Work that is done once per step is not timed: our plan of splits, FlashInfer's `plan`. SDPA gets contiguous keys
instead of blocks, so the difference from its figure includes the cost of paging.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from phase2_attention_kvcache.model import GPT2_124M
from phase3_paged_attention.paging import PagedKVCache, StepLayout, compiled_kernel, paged_attention_loops
from phase5_real_gpu.kernels import paged_decode, paged_prefill  # before PyTorch's own imports of Triton
from phase5_real_gpu.kernels.decode import plan_decode
from phase5_real_gpu.kernels.triton_setup import capability
from phase5_real_gpu.measuring.engine_peers import every_backend
from phase5_real_gpu.measuring.kernel_cases import AttentionInputs
from phase5_real_gpu.measuring.measurements import NotHere

Call = Callable[[], Tensor]
Layers = Sequence[AttentionInputs]


@dataclass(frozen=True)
class Runner:
    """One way to compute attention.

    Attributes:
        prefix: of the measurement's name, "" for the course's production kernel.
        title: for people.
        prepare: layers -> one call per layer, which returns [N, num_heads, head_dim]. Raises NotHere.
    """

    prefix: str
    title: str
    prepare: Callable[[Layers], list[Call]]


def copies_in_memory(inputs: AttentionInputs, layers: int) -> list[AttentionInputs]:
    """`layers` copies of the inputs in different memory, so that no cache holds the keys of the next layer."""
    caches = [(inputs.k_cache.clone(), inputs.v_cache.clone()) for _ in range(layers - 1)]
    return [inputs, *(replace(inputs, k_cache=k, v_cache=v) for k, v in caches)]


# ---------------------------------------------------------------------- the course's own


def triton_kernel(layers: Layers) -> list[Call]:
    """`paged_decode`, or `paged_prefill` for prompts."""
    first = layers[0]
    plan = None
    if first.case.is_decode:
        plan = plan_decode(first.case.context_lens, first.q, first.k_cache)

    def call(x: AttentionInputs, out: Tensor) -> Tensor:
        where = (x.q, x.k_cache, x.v_cache, x.block_tables)
        if plan is None:
            return paged_prefill(*where, x.cu_query_lens, x.context_lens, out=out)
        return paged_decode(*where, x.context_lens, plan=plan, out=out)

    return [partial(call, x, torch.empty_like(x.q)) for x in layers]


def phase3_cache(layers: Layers, use_kernel: bool) -> list[Call]:
    """`PagedKVCache.attend`: the compiled kernel on blocks in place, or PyTorch after gathering the blocks."""

    def prepare(x: AttentionInputs) -> Call:
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

    if use_kernel and compiled_kernel() is None:
        raise NotHere("numba is not installed, so Phase 3's compiled kernel is missing: pip install numba")
    return [prepare(x) for x in layers]


def plain_loops(layers: Layers) -> list[Call]:
    """Decode with `paged_attention_loops`, which takes lists."""

    def prepare(x: AttentionInputs) -> Call:
        k, v, tables = x.k_cache.tolist(), x.v_cache.tolist(), x.block_tables.tolist()
        rows = list(zip(x.q.tolist(), tables, x.case.context_lens, strict=True))
        return lambda: torch.tensor(
            [paged_attention_loops(q, k, v, table, n) for q, table, n in rows], device=x.q.device
        )

    return [prepare(x) for x in layers]


# ---------------------------------------------------------------------- PyTorch


def sdpa(layers: Layers) -> list[Call]:
    """PyTorch's scaled_dot_product_attention on contiguous keys."""

    def fused(*qkv: Tensor, **options: bool) -> Tensor:
        with every_backend():
            return F.scaled_dot_product_attention(*qkv, **options)

    def prepare(x: AttentionInputs) -> Call:
        h, lens, shape = x.case.heads, x.case.context_lens, x.q.shape
        if len(set(lens)) > 1 or x.case.kv_dtype:
            raise NotHere("it takes equal lengths only, and no fp8 keys")
        rows = [x.rows_of(i) for i in range(len(lens))]
        # [B, num_kv_heads, context_len, head_dim]
        keys, values = (
            torch.stack([row[i] for row in rows]).transpose(1, 2).to(x.q.dtype).contiguous() for i in (0, 1)
        )
        if x.case.is_decode:
            # The queries that share a KV head as rows of one matrix: each key is read once for all of them.
            q = x.q.view(len(lens), h.num_kv_heads, -1, h.head_dim)
            return lambda: fused(q, keys, values).reshape(shape)
        q = x.q.view(len(lens), -1, h.num_heads, h.head_dim).transpose(1, 2)
        options = dict(is_causal=True, enable_gqa=h.num_heads != h.num_kv_heads)
        return lambda: fused(q, keys, values, **options).transpose(1, 2).reshape(shape)

    return [prepare(x) for x in layers]


# ---------------------------------------------------------------------- FlashInfer


def page_lists(x: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
    """FlashInfer's form of the block tables.

    Returns:
        the start of each request's pages in the list of all pages, [B + 1]; this list; the number of tokens in each
        request's last page, [B]. All int32.
    """
    size = x.case.heads.block_size
    needed = [-(-n // size) for n in x.case.context_lens]
    starts = list(itertools.accumulate(needed, initial=0))
    pages = torch.cat([table[:n] for table, n in zip(x.block_tables, needed)])
    last = [(n - 1) % size + 1 for n in x.case.context_lens]
    starts, last = (torch.tensor(numbers, dtype=torch.int32, device=x.q.device) for numbers in (starts, last))
    return starts, pages.to(torch.int32), last


def flashinfer(layers: Layers) -> list[Call]:
    """FlashInfer's kernels on the same blocks: fa2, except on Hopper, where FlashInfer chooses between fa2 and fa3."""
    try:
        import flashinfer
    except ImportError:
        raise NotHere(
            "FlashInfer is not installed: pip install flashinfer-python==0.6.4 (it compiles its kernels with nvcc)"
        ) from None
    x = layers[0]
    h, pages = x.case.heads, page_lists(x)
    room = torch.zeros(256 * 2**20, dtype=torch.uint8, device=x.q.device)
    pool = (*pages, h.num_heads, h.num_kv_heads, h.head_dim, h.block_size)
    kinds = dict(q_data_type=x.q.dtype, kv_data_type=x.k_cache.dtype)
    backend = "auto" if capability()[0] == 9 else "fa2"
    if x.case.is_decode:
        make = partial(flashinfer.BatchDecodeWithPagedKVCacheWrapper, use_tensor_cores=True)
        wrapper = make(room, "NHD", backend=backend)
        wrapper.plan(*pool, **kinds)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(room, "NHD", backend=backend)
        wrapper.plan(x.cu_query_lens, *pool, causal=True, **kinds)
    return [partial(wrapper.run, y.q, (y.k_cache, y.v_cache)) for y in layers]


TRITON = Runner("", "this course, Triton", triton_kernel)
COMPILED = Runner("", "compiled, in place", partial(phase3_cache, use_kernel=True))
GATHER = Runner("gather-", "copied, then PyTorch", partial(phase3_cache, use_kernel=False))
PROMPT = Runner("", "Phase 3 (SDPA inside)", partial(phase3_cache, use_kernel=False))
PYTHON = Runner("python-", "plain Python loops", plain_loops)
SDPA = Runner("sdpa-", "PyTorch SDPA, one row", sdpa)
FLASHINFER = Runner("flashinfer-", "FlashInfer", flashinfer)
