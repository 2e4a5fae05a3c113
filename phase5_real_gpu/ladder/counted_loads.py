"""What a rung reads: every load of a kernel counted in the interpreter."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from phase3_paged_attention.paging.paged_attention import paged_attention_vectorised
from phase5_real_gpu.ladder.ladder_rungs import Shape

SMALL = Shape([70, 0, 129], num_heads=8, num_kv_heads=2, head_dim=32, block_size=16, itemsize=4)
OUTSIDE = 2**30  # a block far behind every pool


def random_step(
    shape: Shape, dtype: torch.dtype, device: str, seed: int, query_lens: Sequence[int] | None = None
) -> tuple[Tensor, ...]:
    """q, k_cache, v_cache, block_tables, context_lens of a step, its blocks scattered at random.

    Slots that hold no token are NaN, and entries behind a request's blocks are OUTSIDE.

    Args:
        query_lens: new tokens of each request; None: one each.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=dtype, device=device)

    needed = shape.num_blocks
    cache = random(2, 1 + sum(needed), shape.block_size, shape.num_kv_heads, shape.head_dim)
    cache[:, 0] = math.nan  # the null block
    order = 1 + torch.randperm(sum(needed), generator=generator, device=device).to(torch.int32)
    tables = torch.full((len(needed), max(1, *needed)), OUTSIDE, dtype=torch.int32, device=device)
    for table, blocks, context_len in zip(tables, order.split(needed), shape.context_lens):
        table[: len(blocks)] = blocks
        if used := context_len % shape.block_size:
            cache[:, int(blocks[-1]), used:] = math.nan
    q = random(sum(query_lens) if query_lens else len(needed), shape.num_heads, shape.head_dim)
    return q, *cache, tables, torch.tensor(shape.context_lens, dtype=torch.int32, device=device)


def expected(step: tuple[Tensor, ...], query_lens: Sequence[int] | None = None) -> Tensor:
    """Phase 3's attention in float64, zeros for an empty context."""
    q, k_cache, v_cache, tables, lens = (t.cpu() for t in step)
    query_lens = query_lens or [1] * len(lens)
    out = torch.zeros(q.shape, dtype=torch.float64)
    caches = k_cache.double(), v_cache.double()
    for queries, rows, table, n in zip(q.split(query_lens), out.split(query_lens), tables, lens.tolist()):
        if n:
            rows[:] = paged_attention_vectorised(queries.double(), *caches, table[None], [len(rows)], [n])
    return out


@dataclass
class Counted:
    """What interpreted kernels did: programs started, bytes loaded from each tensor, and the tensor of each load, in order."""

    programs: int
    loaded: dict[str, int]
    loads: list[str]


@contextmanager
def count_loads(**tensors: Tensor) -> Iterator[Counted]:
    """Count what interpreted kernels load from these tensors; masked-out places are not loaded."""
    from triton.runtime.interpreter import interpreter_builder as builder

    counted = Counted(0, dict.fromkeys(tensors, 0), [])
    # A view may share its memory with another, so addresses are told apart by where each view begins and ends.
    places = {name: (t.data_ptr(), t.data_ptr() + t.element_size() * _span(t)) for name, t in tensors.items()}
    load, start = builder.create_masked_load, builder.set_grid_idx

    def counting_load(pointers, mask, *arguments, **named):
        addresses = pointers.data[mask.data.astype(bool)]
        size = pointers.get_element_ty().primitive_bitwidth // 8
        for name, (begin, end) in places.items():
            numbers = int(((addresses >= begin) & (addresses < end)).sum())
            counted.loaded[name] += size * numbers
            counted.loads += [name] * (numbers > 0)
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
