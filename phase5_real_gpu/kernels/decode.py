"""`paged_decode`: checks the arguments, plans the splits and launches the kernels of `decode_kernel.py`."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phase5_real_gpu.kernels.decode_kernel import decode_kernel, merge_kernel
from phase5_real_gpu.kernels.kernel_checks import check_attention, check_out
from phase5_real_gpu.kernels.split_rule import MOST_SPLITS, Splits, choose_splits, programs_that_fit
from phase5_real_gpu.kernels.triton_setup import INTERPRETED, capability, has_matrix_instructions, triton

LOG2_E = math.log2(math.e)


@dataclass
class DecodePlan:
    """How a step's contexts are split, and memory for the results of the splits. All layers use the same plan.

    Attributes:
        num_splits: splits of the longest context; 1: contexts are not split, and nothing is merged.
        split_tokens: [1] int32 on the device, tokens per split: a tensor, so that a recorded CUDA graph can serve other lengths.
        partial_out: [B, num_heads, num_splits, head_dim] float32. partial_lse: [B, num_heads, num_splits].
    """

    num_splits: int
    split_tokens: Tensor
    partial_out: Tensor
    partial_lse: Tensor

    @classmethod
    def make(
        cls,
        batch: int,
        num_heads: int,
        head_dim: int,
        splits: Splits,
        device: torch.device | str,
        memory: Tensor | None = None,
    ) -> DecodePlan:
        """memory: float32, for the results of the splits; None, or too small: new memory."""
        rows = (batch, num_heads, splits.num_splits if splits.num_splits > 1 else 0)
        num_floats = math.prod(rows) * (head_dim + 1)
        if memory is None or memory.numel() < num_floats:
            memory = torch.empty(num_floats, dtype=torch.float32, device=device)
        size = torch.full((1,), splits.split_tokens, dtype=torch.int32, device=device)
        out, lse = memory[:num_floats].split([math.prod(rows) * head_dim, math.prod(rows)])
        return cls(splits.num_splits, size, out.view(*rows, head_dim), lse.view(rows))


def in_powers_of_two(scale: float, softcap: float | None) -> tuple[float, float | None]:
    """The factor of the dot products, and SOFTCAP, for kernels that compute powers of two."""
    if softcap is None:
        return scale * LOG2_E, None
    return scale / softcap * 2 * LOG2_E, softcap * LOG2_E


def tile_tokens(head_dim: int, itemsize: int) -> int:
    """Tokens per tile: 64 with up to 256 bytes per head, fewer with more bytes (shared memory is small)."""
    if not has_matrix_instructions(itemsize):  # then the multiplications need many more registers
        return 16
    return max(16, min(64, 64 * 256 // (triton.next_power_of_2(head_dim) * itemsize)))


def program_slots(num_heads: int, k_cache: Tensor, dtype: torch.dtype) -> int:
    """How many programs of split decode run at the same time on the GPU of `k_cache`; 1 without a GPU. dtype: q's."""
    if k_cache.device.type != "cuda" or INTERPRETED:
        return 1
    return _program_slots(num_heads, *k_cache.shape[1:], dtype, k_cache.dtype, k_cache.device)


@functools.cache
def _program_slots(num_heads, block_size, num_kv_heads, head_dim, dtype, cache_dtype, device) -> int:
    """Reads registers and shared memory from the compiled kernel, which is launched for one request without tokens."""
    cache = torch.empty(1, block_size, num_kv_heads, head_dim, dtype=cache_dtype, device=device)
    q = torch.empty(1, num_heads, head_dim, dtype=dtype, device=device)
    table = torch.zeros(1, 1, dtype=torch.int32, device=device)
    plan = DecodePlan.make(1, num_heads, head_dim, Splits(2, 64), device)
    compiled = launch_decode(torch.empty_like(q), q, cache, cache, table, table[0], 1.0, plan)
    card = torch.cuda.get_device_properties(device)
    fit = programs_that_fit(
        compiled.n_regs, compiled.metadata.shared, compiled.metadata.num_warps,
        card.shared_memory_per_multiprocessor, card.max_threads_per_multi_processor, card.major,
    )  # fmt: skip
    return card.multi_processor_count * fit


def plan_decode(context_lens: Sequence[int], q: Tensor, k_cache: Tensor) -> DecodePlan:
    """The plan that `split_rule.py` chooses for these lengths. q: [B, num_heads, head_dim]."""
    tile = tile_tokens(q.shape[2], q.element_size())
    slots = program_slots(q.shape[1], k_cache, q.dtype)
    return DecodePlan.make(*q.shape, choose_splits(context_lens, k_cache.shape[2], slots, tile), q.device)


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float | None = None,
    *,
    window: int | None = None,
    softcap: float | None = None,
    num_splits: int | None = None,
    plan: DecodePlan | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of one new token per request, over keys and values in blocks: [B, num_heads, head_dim].

    Args:
        q: [B, num_heads, head_dim].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], the new token already stored; fp8 is widened when read.
        block_tables: [B, most blocks] integers; entries after a request's blocks are ignored.
        context_lens: [B] integers, the new token included; 0: a row of padding, its result is zero.
        scale: 1 / sqrt(head_dim) if not given.
        window: tokens to which a query attends, its own included; None: all. Earlier blocks are not read.
        softcap: each score s becomes softcap x tanh(s / softcap); None: scores are not limited.
        num_splits: splits of the longest context; None: chosen by `split_rule.py`.
        plan: the splits, and memory for their results. A step makes one plan for all layers.
        out: [B, num_heads, head_dim], where to put the result.

    Raises:
        ValueError: shapes, types or devices that do not match; in the interpreter also a table entry outside the cache.
        LabError: Triton is not installed.
    """
    check_attention(q, k_cache, v_cache, block_tables, context_lens, window, softcap)
    batch, num_heads, head_dim = q.shape
    if len(block_tables) != batch:
        raise ValueError(f"q has {batch} requests, block_tables {len(block_tables)}: one row each")
    out = check_out(out, q)
    if batch == 0:
        return out
    if plan is None:
        longest = block_tables.shape[1] * k_cache.shape[1]  # the lengths themselves are on the GPU
        if num_splits is None:
            plan = plan_decode([longest] * batch, q, k_cache)
        else:
            if not 1 <= num_splits <= MOST_SPLITS:
                raise ValueError(f"num_splits is {num_splits}: from 1 to {MOST_SPLITS}")
            tile = tile_tokens(head_dim, q.element_size())
            tiles = max(1, -(-longest // tile))
            plan = DecodePlan.make(*q.shape, Splits(num_splits, -(-tiles // num_splits) * tile), q.device)
    if plan.num_splits > 1 and (
        plan.partial_lse.shape[0] < batch or plan.partial_out.shape[1::2] != (num_heads, head_dim)
    ):
        raise ValueError(
            f"the plan has room for {list(plan.partial_out.shape)}, q is {list(q.shape)}: make one for q"
        )
    scale = head_dim**-0.5 if scale is None else scale
    launch_decode(
        out, q, k_cache, v_cache, block_tables, context_lens, scale, plan,
        window=window, softcap=softcap,
    )  # fmt: skip
    return out


def launch_decode(
    out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor,
    scale: float, plan: DecodePlan, *, window: int | None = None, softcap: float | None = None,
) -> Any:  # fmt: skip
    """Launch the kernels without checks. Returns Triton's compiled decode kernel (None in the interpreter)."""
    batch, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    is_split = plan.num_splits > 1
    score_scale, cap = in_powers_of_two(scale, softcap)
    queries_per_kv = num_heads // num_kv_heads
    dims = triton.next_power_of_2(head_dim)
    compiled = decode_kernel[(batch, num_kv_heads, plan.num_splits)](
        out, plan.partial_out, plan.partial_lse, q, k_cache, v_cache, block_tables, context_lens,
        plan.split_tokens, score_scale,
        *q.stride()[:2], *k_cache.stride()[:3], block_tables.stride(0),
        QUERIES_PER_KV=queries_per_kv, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        ROWS=max(16, triton.next_power_of_2(queries_per_kv)), DIMS=dims,
        TILE=tile_tokens(head_dim, q.element_size()),
        IS_SPLIT=is_split, UPCAST=INTERPRETED, WINDOW=window, SOFTCAP=cap, num_stages=3,
        num_warps=8 if dims > 128 and q.element_size() == 4 else 4,  # 256 wide numbers do not fit into the registers of 4
        # Left alone, the compiler spills some variants.
        maxnreg=255 if dims != 128 and (k_cache.element_size() == 1 or capability() >= (10, 0)) else None,
    )  # fmt: skip
    if is_split:
        merge_kernel[(batch, num_heads)](
            out, plan.partial_out, plan.partial_lse, plan.num_splits,
            HEAD_DIM=head_dim, DIMS=dims, SPLITS=triton.next_power_of_2(plan.num_splits),
            num_warps=4 if plan.num_splits <= 32 else 8,  # 128 splits of 256 numbers do not fit into the registers of 4
        )  # fmt: skip
    return compiled
