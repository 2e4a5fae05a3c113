"""Decode attention on scattered blocks: one new token for each request. The kernel on the engine's path.

Each program takes one KV head of one request (or of one split of its context), and walks along the block table:

    program (request 2, KV head 5, split 0)       q_tile  the query heads that share KV head 5, one a row

        block table of request 2:   7   3   12  9 ...
                                    |
        a tile of 64 tokens = blocks 7, 3, 12, 9: keys [64, head_dim] -> scores -> online softmax -> values

It is `paged_attention_loops` of Phase 3 with four changes that a GPU asks for; `decode_ladder.py` adds them
one at a time, and says what each is worth:

- The query heads that share a KV head are the rows of one matrix, so each key is fetched once for all of them.
- A tile is wider than a block: the number of tokens fetched at a time suits the card, not the memory manager.
- The block numbers of the *next* tile are fetched during this one. Otherwise the address of the keys depends
  on a load that has just begun, and nothing can be fetched ahead.
- A long context is cut into splits (`split_rule.py`); `merge_kernel` merges their results.

Two things that some models ask for cost the others nothing, since they are decided when the kernel is compiled:

    WINDOW     begin at the first token that the query sees; splits share what is left of the context
    SOFTCAP    bend each score before the online softmax takes it

Exponentials are powers of two (exp2, one instruction): the factor log2(e) hides in the scale.

Sources: Kwon et al. (2023), section 4.1; Dao, "Flash-Decoding" (2023), for the splits; vLLM,
vllm/v1/attention/ops/triton_unified_attention.py, for tiles wider than blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phase5_real_gpu.kernels.kernel_checks import check_attention, check_out, check_rule, check_tables
from phase5_real_gpu.kernels.split_rule import MOST_SPLITS, Splits, choose_splits
from phase5_real_gpu.kernels.triton_setup import INTERPRETED, capability, has_matrix_instructions, tl, triton

LOG2_E = math.log2(math.e)
PROGRAMS_PER_MULTIPROCESSOR = 2  # that many fit side by side, by the shared memory they need


@triton.jit
def bend(scores, SOFTCAP: tl.constexpr):
    """SOFTCAP x tanh(x), for tanh(x) = 1 - 2 / (e^2x + 1). scores: x times 2 log2(e), so that exp2 gives e^2x."""
    return SOFTCAP * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))


@triton.jit(do_not_specialize=["table_stride"])  # it changes from step to step; one compiled kernel is enough
def decode_kernel(
    out,  # [B, num_heads, HEAD_DIM], written if IS_SPLIT is False
    partial_out,  # [B, num_heads, num_splits, HEAD_DIM] float32, written if IS_SPLIT is True
    partial_lse,  # [B, num_heads, num_splits] float32: log2 of each split's sum of weights
    q,  # [B, num_heads, HEAD_DIM]
    k_cache,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_DIM]
    v_cache,  # the same, with the same strides
    block_tables,  # [B, most blocks]
    context_lens,  # [B]
    split_tokens,  # [1]: tokens of a split
    score_scale,  # see `in_powers_of_two`
    value_scale,  # scale of fp8 values
    q_row_stride,
    q_head_stride,
    kv_block_stride,
    kv_token_stride,
    kv_head_stride,
    table_stride,
    QUERIES_PER_KV: tl.constexpr,  # query heads that share a KV head
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,  # QUERIES_PER_KV, rounded up to what a matrix instruction takes
    DIMS: tl.constexpr,  # HEAD_DIM, rounded up to a power of two
    TILE: tl.constexpr,  # tokens read at a time
    IS_SPLIT: tl.constexpr,
    UPCAST: tl.constexpr,  # multiply in float32 (only for the interpreter, which cannot multiply bfloat16)
    WINDOW: tl.constexpr,  # tokens that a query sees, itself included; None: all
    SOFTCAP: tl.constexpr,  # see `bend`, times log2(e); None: scores stay as they are
):
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    num_heads = tl.num_programs(1) * QUERIES_PER_KV

    # 1. Which tokens are mine?
    end = tl.load(context_lens + request).to(tl.int32)  # they may come in 64 bits
    first = 0
    if WINDOW is not None:
        first = tl.maximum(end - WINDOW, 0)
    if IS_SPLIT:
        size = tl.load(split_tokens)
        if WINDOW is not None:  # the plan is for whole contexts; a window is shorter
            size = tl.minimum(size, tl.cdiv(tl.cdiv(WINDOW, tl.num_programs(2)), TILE) * TILE)
        first += split * size
        end = tl.minimum(end, first + size)

    # 2. The queries: one row a head.
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    places_in_tile = tl.arange(0, TILE)
    heads = kv_head * QUERIES_PER_KV + rows
    is_head = rows < QUERIES_PER_KV
    is_dim = dims < HEAD_DIM
    q_tile = tl.load(
        q + request * q_row_stride + heads[:, None] * q_head_stride + dims[None, :],
        mask=is_head[:, None] & is_dim[None, :],
        other=0.0,
    )
    if UPCAST:
        q_tile = q_tile.to(tl.float32)

    # 3. Walk along the table. What is kept is what the online softmax of Phase 3 keeps.
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIMS], tl.float32)
    table = block_tables + request * table_stride
    tokens = first + places_in_tile
    blocks = tl.load(table + tokens // BLOCK_SIZE, mask=tokens < end, other=0)
    for start in range(first, end, TILE):
        tokens = start + places_in_tile
        is_token = tokens < end
        # The next tile's blocks, one round early, so that its keys can be fetched ahead.
        next_tokens = tokens + TILE
        next_blocks = tl.load(table + next_tokens // BLOCK_SIZE, mask=next_tokens < end, other=0)
        # 64-bit: a cache has more than 2^31 numbers.
        slots = (
            blocks.to(tl.int64) * kv_block_stride
            + (tokens % BLOCK_SIZE) * kv_token_stride
            + kv_head * kv_head_stride
        )
        keys = tl.load(
            k_cache + slots[None, :] + dims[:, None], mask=is_token[None, :] & is_dim[:, None], other=0.0
        ).to(q_tile.dtype)  # [DIMS, TILE]
        scores = tl.dot(q_tile, keys, input_precision="ieee") * score_scale
        if SOFTCAP is not None:
            scores = bend(scores, SOFTCAP)
        scores = tl.where(is_token[None, :], scores, float("-inf"))

        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        shrink = tl.exp2(largest - new_largest)
        weights = tl.exp2(scores - new_largest[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        values = tl.load(
            v_cache + slots[:, None] + dims[None, :], mask=is_token[:, None] & is_dim[None, :], other=0.0
        ).to(q_tile.dtype)  # [TILE, DIMS]
        acc = acc * shrink[:, None] + tl.dot(weights.to(q_tile.dtype), values, input_precision="ieee")
        largest = new_largest
        blocks = next_blocks

    # 4. Divide, once. A request without tokens gets zeros.
    is_empty = total == 0.0
    acc = acc * value_scale / tl.where(is_empty, 1.0, total)[:, None]
    out_rows = request * num_heads + heads
    if IS_SPLIT:
        num_splits = tl.num_programs(2)
        lse = tl.where(is_empty, float("-inf"), largest + tl.log2(tl.where(is_empty, 1.0, total)))
        tl.store(partial_lse + out_rows * num_splits + split, lse, mask=is_head)
        if first < end:  # the result of an empty split is never read
            tl.store(
                partial_out + (out_rows * num_splits + split)[:, None] * HEAD_DIM + dims[None, :],
                acc,
                mask=is_head[:, None] & is_dim[None, :],
            )
    else:
        tl.store(
            out + out_rows[:, None] * HEAD_DIM + dims[None, :],
            acc.to(out.dtype.element_ty),
            mask=is_head[:, None] & is_dim[None, :],
        )


@triton.jit(do_not_specialize=["num_splits"])
def merge_kernel(
    out,  # [B, num_heads, HEAD_DIM]
    partial_out,  # [B, num_heads, num_splits, HEAD_DIM] float32
    partial_lse,  # [B, num_heads, num_splits] float32: log2 of each split's sum of weights
    num_splits,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    SPLITS: tl.constexpr,  # num_splits, rounded up to a power of two
):
    """Each split counts in proportion to its sum of weights."""
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    which = tl.arange(0, SPLITS)
    dims = tl.arange(0, DIMS)
    lse = tl.load(partial_lse + row * num_splits + which, mask=which < num_splits, other=float("-inf"))
    largest = tl.max(lse, axis=0)
    largest = tl.where(largest == float("-inf"), 0.0, largest)  # a request without tokens: weights of 0
    weights = tl.exp2(lse - largest)
    found = tl.load(
        partial_out + (row * num_splits + which)[:, None] * HEAD_DIM + dims[None, :],
        mask=(lse > float("-inf"))[:, None] & (dims < HEAD_DIM)[None, :],
        other=0.0,
    )
    total = tl.sum(weights, axis=0)
    merged = tl.sum(found * weights[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * HEAD_DIM + dims, merged.to(out.dtype.element_ty), mask=dims < HEAD_DIM)


@dataclass
class DecodePlan:
    """How a step's contexts are cut, and room for the results of the splits. One plan serves all layers.

    Attributes:
        num_splits: of the longest context; 1: no cutting, no merging.
        split_tokens: [1] int32 on the device, tokens of a split. It lies there, and is no number in the launch,
            so that a recorded CUDA graph can serve other lengths later.
        partial_out: [B, num_heads, num_splits, head_dim] float32. partial_lse: [B, num_heads, num_splits].
    """

    num_splits: int
    split_tokens: Tensor
    partial_out: Tensor
    partial_lse: Tensor

    @classmethod
    def make(
        cls, batch: int, num_heads: int, head_dim: int, splits: Splits, device: torch.device | str
    ) -> DecodePlan:
        room = splits.num_splits if splits.num_splits > 1 else 0
        return cls(
            splits.num_splits,
            torch.full((1,), splits.split_tokens, dtype=torch.int32, device=device),
            torch.empty(batch, num_heads, room, head_dim, dtype=torch.float32, device=device),
            torch.empty(batch, num_heads, room, dtype=torch.float32, device=device),
        )


def in_powers_of_two(scale: float, softcap: float | None) -> tuple[float, float | None]:
    """What a kernel multiplies its dot products by, and its SOFTCAP. scale: of the scores, times that of fp8 keys."""
    if softcap is None:
        return scale * LOG2_E, None
    return scale / softcap * 2 * LOG2_E, softcap * LOG2_E


def tile_tokens(head_dim: int, itemsize: int) -> int:
    """Tokens a tile: 64 of up to 256 bytes a head, fewer where they are larger (shared memory is small)."""
    if not has_matrix_instructions(itemsize):  # then products need many more registers
        return 16
    return max(16, min(64, 64 * 256 // (triton.next_power_of_2(head_dim) * itemsize)))


def program_slots(device: torch.device) -> int:
    """How many programs run at the same time. The interpreter runs one."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count * PROGRAMS_PER_MULTIPROCESSOR


def plan_decode(context_lens: Sequence[int], q: Tensor, k_cache: Tensor) -> DecodePlan:
    """The plan that `split_rule.py` finds for these lengths. q: [B, num_heads, head_dim]."""
    tile = tile_tokens(q.shape[2], q.element_size())
    splits = choose_splits(context_lens, k_cache.shape[2], program_slots(q.device), tile)
    return DecodePlan.make(*q.shape, splits, q.device)


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
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    num_splits: int | None = None,
    plan: DecodePlan | None = None,
    out: Tensor | None = None,
    checked: bool = False,
) -> Tensor:
    """Attention of one new token for each request, over keys and values that lie in blocks.

    Args:
        q: [B, num_heads, head_dim].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], the new token already in them.
        block_tables: [B, most blocks] integers; what stands behind a request's blocks is ignored.
        context_lens: [B] integers, the new token included; 0: a row of padding, its result is zero.
        scale: 1 / sqrt(head_dim) if not given.
        window: tokens that a query sees, itself included; None: all. Blocks that end before are not looked at.
        softcap: each score s becomes softcap x tanh(s / softcap); None: it stays as it is.
        k_scale, v_scale: what fp8 keys and values are to be multiplied by.
        num_splits: to cut the longest context into; None: chosen by `split_rule.py`.
        plan: cut as this plan says, into memory that is there. A step makes one for all layers.
        out: [B, num_heads, head_dim], where to put the result.
        checked: look into the tables first. That waits for the GPU, so only the interpreter always does.

    Returns:
        [B, num_heads, head_dim].

    Raises:
        ValueError: shapes, types or devices that do not fit; a table that points outside (if `checked`).
        LabError: Triton is not installed.
    """
    check_attention(q, k_cache, v_cache, block_tables, context_lens)
    check_rule(window, softcap)
    batch, num_heads, head_dim = q.shape
    num_blocks, block_size, num_kv_heads, _ = k_cache.shape
    if len(block_tables) != batch:
        raise ValueError(f"q has {batch} requests, block_tables {len(block_tables)}: one row each")
    if checked or INTERPRETED:
        check_tables(block_tables, context_lens, num_blocks, block_size)
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    check_out(out, q)
    if batch == 0:
        return out
    tile = tile_tokens(head_dim, q.element_size())
    if plan is None:
        longest = block_tables.shape[1] * block_size  # the lengths themselves are on the GPU
        if num_splits is None:
            plan = plan_decode([longest] * batch, q, k_cache)
        else:
            if not 1 <= num_splits <= MOST_SPLITS:
                raise ValueError(f"num_splits is {num_splits}: from 1 to {MOST_SPLITS}")
            tiles = max(1, -(-longest // tile))
            plan = DecodePlan.make(*q.shape, Splits(num_splits, -(-tiles // num_splits) * tile), q.device)
    if plan.num_splits > 1 and (
        plan.partial_lse.shape[0] < batch or plan.partial_out.shape[1::2] != (num_heads, head_dim)
    ):
        raise ValueError(
            f"the plan has room for {list(plan.partial_out.shape)}, q is {list(q.shape)}: make one for q"
        )
    is_split = plan.num_splits > 1
    scale = head_dim**-0.5 if scale is None else scale
    score_scale, cap = in_powers_of_two(scale * k_scale, softcap)
    queries_per_kv = num_heads // num_kv_heads
    dims = triton.next_power_of_2(head_dim)
    decode_kernel[(batch, num_kv_heads, plan.num_splits)](
        out, plan.partial_out, plan.partial_lse, q, k_cache, v_cache, block_tables, context_lens,
        plan.split_tokens, score_scale, v_scale,
        *q.stride()[:2], *k_cache.stride()[:3], block_tables.stride(0),
        QUERIES_PER_KV=queries_per_kv, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        ROWS=max(16, triton.next_power_of_2(queries_per_kv)), DIMS=dims, TILE=tile,
        IS_SPLIT=is_split, UPCAST=INTERPRETED, WINDOW=window, SOFTCAP=cap, num_warps=4, num_stages=3,
        maxnreg=168 if capability() >= (10, 0) else None,  # left alone, the compiler takes too few there
    )  # fmt: skip
    if is_split:
        merge_kernel[(batch, num_heads)](
            out, plan.partial_out, plan.partial_lse, plan.num_splits,
            HEAD_DIM=head_dim, DIMS=dims, SPLITS=triton.next_power_of_2(plan.num_splits), num_warps=4,
        )  # fmt: skip
    return out
