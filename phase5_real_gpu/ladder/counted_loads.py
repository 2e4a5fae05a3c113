"""What a rung reads: every load of a kernel counted in the interpreter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from phase3_paged_attention.paging.paged_attention import paged_attention_vectorised
from phase5_real_gpu.ladder.ladder_rungs import FULL_BATCH, ONE_LONG, Rung, Shape, run_rung

SMALL = Shape([70, 0, 129], num_heads=8, num_kv_heads=2, head_dim=32, block_size=16, itemsize=4)


LARGE = {"b64-4k": FULL_BATCH, "b1-32k": ONE_LONG}


def random_step(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Tensor, ...]:
    """q, k_cache, v_cache, block_tables, context_lens of a decode step, its blocks scattered at random.

    Slots that hold no token are NaN, and entries behind a request's blocks point far outside the pool.
    """
    generator = torch.Generator(device).manual_seed(seed)
    pages = shape.pages
    num_blocks = 1 + sum(pages)
    cache_shape = (2, num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
    cache = torch.randn(cache_shape, generator=generator, dtype=dtype, device=device)
    order = 1 + torch.randperm(num_blocks - 1, generator=generator, device=device).to(torch.int32)
    tables = torch.full((len(pages), max(1, *pages)), 2**30, dtype=torch.int32, device=device)
    cache[:, 0] = math.nan  # the null block
    first = 0
    for i, (context_len, n) in enumerate(zip(shape.context_lens, pages)):
        tables[i, :n] = order[first : first + n]
        first += n
        if used := context_len % shape.block_size:
            cache[:, int(tables[i, n - 1]), used:] = math.nan
    q = torch.randn(
        len(pages), shape.num_heads, shape.head_dim, generator=generator, dtype=dtype, device=device
    )
    lens = torch.tensor(shape.context_lens, dtype=torch.int32, device=device)
    return q, cache[0], cache[1], tables, lens


def expected(step: tuple[Tensor, ...]) -> Tensor:
    """Phase 3's attention in float64, zeros for an empty context."""
    q, k_cache, v_cache, tables, lens = (t.cpu() for t in step)
    out = torch.zeros(q.shape, dtype=torch.float64)
    for i, context_len in enumerate(lens.tolist()):
        if context_len:
            out[i] = paged_attention_vectorised(
                q[i : i + 1].double(),
                k_cache.double(),
                v_cache.double(),
                tables[i : i + 1],
                [1],
                [context_len],
            )[0]
    return out


@dataclass
class Counted:
    """What interpreted kernels did: programs started, and bytes loaded from each tensor."""

    programs: int
    loaded: dict[str, int]


@contextmanager
def count_loads(**tensors: Tensor) -> Iterator[Counted]:
    """Count what interpreted kernels load from these tensors; masked-out places are not loaded."""
    from triton.runtime.interpreter import interpreter_builder as builder

    counted = Counted(0, dict.fromkeys(tensors, 0))
    # A view may share its memory with another, so addresses are told apart by where each view begins and ends.
    places = {name: (t.data_ptr(), t.data_ptr() + t.element_size() * _span(t)) for name, t in tensors.items()}
    load, start = builder.create_masked_load, builder.set_grid_idx

    def counting_load(pointers, mask, *arguments, **named):
        addresses = pointers.data[mask.data]
        size = pointers.get_element_ty().primitive_bitwidth // 8
        for name, (begin, end) in places.items():
            counted.loaded[name] += size * int(((addresses >= begin) & (addresses < end)).sum())
        return load(pointers, mask, *arguments, **named)

    def counting_start(*arguments):
        counted.programs += 1
        return start(*arguments)

    builder.create_masked_load, builder.set_grid_idx = counting_load, counting_start
    try:
        yield counted
    finally:
        del builder.create_masked_load, builder.set_grid_idx  # the class's own again


def _span(tensor: Tensor) -> int:
    """Numbers from a tensor's first to its last, both counted."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))


def run_counted(rung: Rung, step: tuple[Tensor, ...]) -> tuple[Tensor, Counted]:
    _, k_cache, v_cache, tables, _ = step
    with count_loads(keys=k_cache, values=v_cache, page_ids=tables) as counted:
        out = run_rung(rung, *step)
    return out, counted
