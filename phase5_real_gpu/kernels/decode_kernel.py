"""Decode attention over scattered blocks: one new token per request. `paged_decode` (decode.py) launches it.

Each program takes one KV head of one request (or of one split of its context) and goes through the block table:

    program (request 2, KV head 5, split 0)       q_tile: the query heads that share KV head 5, one per row

        block table of request 2:   7   3   12  9 ...
                                    |
        a tile of 64 tokens = blocks 7, 3, 12, 9: keys [64, head_dim] -> scores -> online softmax -> values

This is `paged_attention_loops` of phase 3 with four changes for a GPU, which `decode_ladder.py` adds one at a time. Two changes
are in `attend_tiles.py`, the loop over tiles; two are here:

- The query heads that share a KV head are the rows of one matrix, so each key is fetched once for all of them.
- A long context is divided into splits (`split_rule.py`); `merge_kernel` merges their results.

Some models need two options. They cost other models nothing, because they are fixed when the kernel is compiled:

    WINDOW     begin at the first token of the query's window; splits share the rest of the context
    SOFTCAP    limit each score before the online softmax

Sources: Kwon et al. (2023), section 4.1; Dao, "Flash-Decoding" (2023), for the splits.
"""

from phase5_real_gpu.kernels.attend_tiles import attend_tiles
from phase5_real_gpu.kernels.triton_setup import tl, triton


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
    SOFTCAP: tl.constexpr,  # see `apply_softcap`, times log2(e); None: scores stay as they are
):
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    num_heads = tl.num_programs(1) * QUERIES_PER_KV

    # 1. The tokens of this program.
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
    rows = tl.arange(0, ROWS)
    heads = kv_head * QUERIES_PER_KV + rows
    is_head = rows < QUERIES_PER_KV
    out_rows = request * num_heads + heads
    if IS_SPLIT:  # noqa: SIM102  one is decided when the kernel is compiled, the other when it runs
        # Short requests leave most splits of a skewed batch empty: such a program only says that it has no result.
        if first >= end:
            tl.store(partial_lse + out_rows * tl.num_programs(2) + split, float("-inf"), mask=is_head)
            return

    # 2. The queries: one row per head.
    dims = tl.arange(0, DIMS)
    is_dim = dims < HEAD_DIM
    q_tile = tl.load(
        q + request * q_row_stride + heads[:, None] * q_head_stride + dims[None, :],
        mask=is_head[:, None] & is_dim[None, :],
        other=0.0,
    )
    if UPCAST:
        q_tile = q_tile.to(tl.float32)

    # 3. Walk along the table. Every row sees all tokens before `end`; the window has already moved `first`.
    acc, total, largest = attend_tiles(
        tl.zeros([ROWS, DIMS], tl.float32), tl.zeros([ROWS], tl.float32), tl.full([ROWS], float("-inf"), tl.float32),
        q_tile, tl.zeros([ROWS], tl.int32) + end - 1, k_cache, v_cache, block_tables + request * table_stride, kv_head,
        first, end, score_scale, kv_block_stride, kv_token_stride, kv_head_stride,
        HEAD_DIM, BLOCK_SIZE, DIMS, TILE, True, None, SOFTCAP,
    )  # fmt: skip

    # 4. Divide, once. A request without tokens gets zeros.
    is_empty = total == 0.0
    acc = acc / tl.where(is_empty, 1.0, total)[:, None]
    if IS_SPLIT:
        place = out_rows * tl.num_programs(2) + split
        tl.store(partial_lse + place, largest + tl.log2(total), mask=is_head)
        tl.store(
            partial_out + place[:, None] * HEAD_DIM + dims[None, :],
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
    """Merges the results of the splits, each weighted by the sum of its softmax weights."""
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
