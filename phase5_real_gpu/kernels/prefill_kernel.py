"""Prefill attention over scattered blocks: many new tokens of many requests; each attends to itself and earlier tokens.

The new tokens of all requests are stored one after the other. Each program takes a run of them from one request, with all
query heads that share a KV head, and goes through that request's block table up to its own last token:

    request 0: 5 new     request 1: 300 new, behind a prefix of 80
    [........]           [........|........|........]      runs; one program each
                                                    attends to the 80, its own and earlier runs

With at least 64 rows a program does much arithmetic for each key that it fetches: prefill is compute-bound, whereas
decode is memory-bound. Tiles to which all rows attend need no mask; only the last few, on the diagonal, are
masked. With a sliding window there is a second diagonal, where the window of each row begins:

    token     0                                   own
    row 0     ..............[masked|  no mask  |masked]
    row 1     ..............[masked|  no mask  |masked]        earlier tokens are not read

The runs of request i are counted from `starts[i] // RUN + i`. This leaves room for each request's last, shorter
run and at most one empty run per request, and needs no other request's length. A binary search finds the request
of a run; an empty run returns at once.

Sources: Dao, "FlashAttention-2" (2023), sections 3.1 to 3.3; vLLM, vllm/v1/attention/ops/triton_unified_attention.py,
for rows of (token, head) pairs and the count of runs.
"""

from torch import Tensor

from phase5_real_gpu.kernels.attend_tiles import attend_tiles
from phase5_real_gpu.kernels.decode import in_powers_of_two, tile_tokens
from phase5_real_gpu.kernels.kernel_checks import check_attention, check_integers, check_out, check_query_lens
from phase5_real_gpu.kernels.triton_setup import INTERPRETED, capability, has_matrix_instructions, tl, triton

LOWEST = tl.constexpr(-1e30)
SMALL_SHARED = ((8, 6), (8, 9), (12, 0), (12, 1))
"""Cards whose programs get 99 KiB of shared memory, not 163 or more: RTX, A10, L4."""


# A kernel compiled for "exactly one request" or "a multiple of 16" would be compiled several times over.
@triton.jit(do_not_specialize=["num_requests", "table_stride"])
def prefill_kernel(
    out,  # [N, num_heads, HEAD_DIM]
    q,  # [N, num_heads, HEAD_DIM]
    k_cache,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_DIM]
    v_cache,  # the same, with the same strides
    block_tables,  # [B, most blocks]
    starts,  # [B + 1]: request i has the new tokens starts[i] to starts[i + 1]
    context_lens,  # [B], the new tokens included
    num_requests,
    score_scale,
    q_row_stride,
    q_head_stride,
    kv_block_stride,
    kv_token_stride,
    kv_head_stride,
    table_stride,
    QUERIES_PER_KV: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,  # (token, head) pairs of a program, at least RUN x QUERIES_PER_KV
    RUN: tl.constexpr,  # new tokens of a program
    DIMS: tl.constexpr,
    TILE: tl.constexpr,
    UPCAST: tl.constexpr,
    WINDOW: tl.constexpr,  # tokens that a query sees, itself included; None: all
    SOFTCAP: tl.constexpr,  # see `apply_softcap`, times log2(e); None: scores stay as they are
):
    # 1. The run of this program and its request. The last runs see most, so they begin first.
    run = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    num_heads = tl.num_programs(1) * QUERIES_PER_KV
    low = 0
    high = num_requests
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(starts + middle) // RUN + middle <= run:
            low = middle
        else:
            high = middle
    request = low
    start = tl.load(starts + request).to(tl.int32)  # they may come in 64 bits
    query_len = tl.load(starts + request + 1).to(tl.int32) - start
    first_new = (run - (start // RUN + request)) * RUN  # of this request's new tokens
    if first_new >= query_len:
        return

    # 2. The rows: RUN tokens x the heads that share a KV head.
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    new = first_new + rows // QUERIES_PER_KV
    heads = kv_head * QUERIES_PER_KV + rows % QUERIES_PER_KV
    is_row = (rows < RUN * QUERIES_PER_KV) & (new < query_len)
    row_mask = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    q_rows = (start + new).to(tl.int64)
    q_tile = tl.load(
        q + (q_rows * q_row_stride + heads * q_head_stride)[:, None] + dims[None, :], mask=row_mask, other=0.0
    )
    if UPCAST:
        q_tile = q_tile.to(tl.float32)

    # 3. The tiles where windows begin, then those that every row may see, then those across the diagonal.
    before = tl.load(context_lens + request).to(tl.int32) - query_len
    row_positions = before + new
    seen_by_all = (before + first_new + 1) // TILE * TILE
    end = before + tl.minimum(first_new + RUN, query_len)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIMS], tl.float32)
    table = block_tables + request.to(tl.int64) * table_stride
    first = 0
    if WINDOW is None:
        largest = tl.full([ROWS], float("-inf"), tl.float32)
    else:
        # A row may see nothing of the first tiles. -inf - (-inf) is NaN, so begin with a number.
        largest = tl.full([ROWS], LOWEST, tl.float32)
        # Begin at the first token that is seen: what lies before may be gone, and 0 x NaN is NaN.
        begin = tl.maximum(before + first_new - WINDOW + 1, 0)
        seen_by_all = begin + (before + first_new + 1 - begin) // TILE * TILE
        # From `first` on even the last row sees all.
        first = tl.minimum(begin + tl.cdiv(tl.maximum(end - WINDOW - begin, 0), TILE) * TILE, seen_by_all)
        acc, total, largest = attend_tiles(
            acc, total, largest, q_tile, row_positions, k_cache, v_cache, table, kv_head,
            begin, first, score_scale, kv_block_stride, kv_token_stride, kv_head_stride,
            HEAD_DIM, BLOCK_SIZE, DIMS, TILE, True, WINDOW, SOFTCAP,
        )  # fmt: skip
    acc, total, largest = attend_tiles(
        acc, total, largest, q_tile, row_positions, k_cache, v_cache, table, kv_head,
        first, seen_by_all, score_scale, kv_block_stride, kv_token_stride, kv_head_stride,
        HEAD_DIM, BLOCK_SIZE, DIMS, TILE, False, WINDOW, SOFTCAP,
    )  # fmt: skip
    acc, total, largest = attend_tiles(
        acc, total, largest, q_tile, row_positions, k_cache, v_cache, table, kv_head,
        seen_by_all, end, score_scale, kv_block_stride, kv_token_stride, kv_head_stride,
        HEAD_DIM, BLOCK_SIZE, DIMS, TILE, True, WINDOW, SOFTCAP,
    )  # fmt: skip

    # 4. Every row has seen at least its own token, so no sum is zero.
    acc = acc / total[:, None]
    tl.store(
        out + ((q_rows * num_heads + heads) * HEAD_DIM)[:, None] + dims[None, :],
        acc.to(out.dtype.element_ty),
        mask=row_mask,
    )


def prefill_shape(
    queries_per_kv: int, head_dim: int, itemsize: int, crowded: bool = False
) -> tuple[int, int, int]:
    """ROWS, RUN and warps of a program: as many rows as fit in its registers without spilling.

    `compile_report.py` shows the registers for each kind of GPU. crowded: a window, a softcap or an fp8 cache, which need more registers.
    """
    dims = triton.next_power_of_2(head_dim)
    if INTERPRETED:  # sizes only matter for speed; small ones show more of the seams between runs
        rows, warps = 16, 4
    elif not has_matrix_instructions(itemsize):  # then products need many more registers
        rows, warps = 16 if dims > 128 else 32, 8
    elif dims > 128 and capability() in SMALL_SHARED:
        if queries_per_kv > 32:
            raise ValueError(f"{queries_per_kv} query heads per KV head of {head_dim}: no room on this GPU")
        rows, warps = 32, 4  # 64 rows would take 100 KiB
    elif dims > 128 or (dims > 64 and (capability()[0] == 12 or (crowded and capability()[0] == 8))):
        rows, warps = 64, 8  # 128 rows spill there
    else:
        rows, warps = 128, 8
    rows = max(rows, triton.next_power_of_2(queries_per_kv))
    return rows, rows // queries_per_kv, warps


def paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    cu_query_lens: Tensor,
    context_lens: Tensor,
    scale: float | None = None,
    *,
    window: int | None = None,
    softcap: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attention for all new tokens of all requests, each over its request's tokens up to itself: [N, num_heads, head_dim].

    Args: as for `paged_decode`, except
        q: [N, num_heads, head_dim], the new tokens of all requests, one request after the other.
        cu_query_lens: [B + 1] integers: request i has rows cu_query_lens[i] to cu_query_lens[i + 1] of q.
        context_lens: [B] integers: tokens of each request, the new ones included.
    """
    check_attention(q, k_cache, v_cache, block_tables, context_lens, window, softcap)
    num_tokens, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    num_requests = len(context_lens)
    check_integers("cu_query_lens", cu_query_lens, q.device)
    if cu_query_lens.shape != (num_requests + 1,):
        raise ValueError(
            f"cu_query_lens has shape {list(cu_query_lens.shape)}: {num_requests} requests need [{num_requests + 1}]"
        )
    if INTERPRETED:
        check_query_lens(cu_query_lens, context_lens, num_tokens)
    out = check_out(out, q)
    if num_tokens == 0 or num_requests == 0:
        return out
    queries_per_kv = num_heads // num_kv_heads
    crowded = window is not None or softcap is not None or k_cache.element_size() == 1
    rows, run, warps = prefill_shape(queries_per_kv, head_dim, q.element_size(), crowded)
    scale = head_dim**-0.5 if scale is None else scale
    score_scale, cap = in_powers_of_two(scale, softcap)
    prefill_kernel[(num_tokens // run + num_requests, num_kv_heads)](
        out, q, k_cache, v_cache, block_tables, cu_query_lens, context_lens, num_requests,
        score_scale,
        *q.stride()[:2], *k_cache.stride()[:3], block_tables.stride(0),
        QUERIES_PER_KV=queries_per_kv, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, ROWS=rows, RUN=run,
        DIMS=triton.next_power_of_2(head_dim), TILE=tile_tokens(head_dim, q.element_size()),
        UPCAST=INTERPRETED, WINDOW=window, SOFTCAP=cap, num_warps=warps, num_stages=3,
        # Left alone, the compiler takes too few registers there, and spills.
        maxnreg=255 if capability() >= (10, 0) or q.element_size() == 4 else None,
    )  # fmt: skip
    return out
