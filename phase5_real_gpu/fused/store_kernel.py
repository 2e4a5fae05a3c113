"""One kernel between the linear layer of q, k, v and attention: it rotates queries and keys, and stores keys and values.

Attaches to: `write_kv`, which it replaces. Each program takes one KV head of one token, with the query heads that
share it: their first halves a and second halves b become (a cos - b sin, b cos + a sin), see `apply_rotary`. Keys and values
are stored in their slot, in the cache's number format. torch needs eight kernels for the rotation alone, each of which reads and
writes all queries and keys.

    q [heads of this KV head]   rotated in place
    k [1]                       rotated, then stored
    v [1]                       stored

For an fp8 cache numbers are limited to the range of fp8, and rounded.
"""

from typing import Any

from torch import Tensor

from phase5_real_gpu.kernels.kernel_checks import check_new_tensor, check_write
from phase5_real_gpu.kernels.triton_setup import INTERPRETED, tl, triton

FP8_LARGEST = tl.constexpr(448.0)  # the largest number of float8_e4m3fn; beyond it there is only NaN


@triton.jit
def round_to_fp8(x):
    """float32 within -448 to 448, to the nearest number that 8 bits can hold; still float32.

    A GPU's conversion rounds by itself. The interpreter's loses a carry (1.97 becomes 1.0), so there numbers are rounded
    before: adding and subtracting a large number removes all bits below a step. The interpreter does not convert NaN
    either. The bits of 480, the next number after 448, are those of NaN.
    """
    exponent = ((x.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    step = ((tl.maximum(exponent, -6) - 3 + 127) << 23).to(tl.float32, bitcast=True)
    large = 12582912.0 * step  # 1.5 x 2^23
    return tl.where(x == x, (x + large) - large, 480.0)


@triton.jit
def store_halves(cache, a, b, is_a, is_b, half, IS_FP8: tl.constexpr, ROUND_FIRST: tl.constexpr):
    """Store a head's two halves at the address `cache`."""
    if IS_FP8:
        # NaN stays NaN, so that an error in the model remains visible.
        a = tl.clamp(a, -FP8_LARGEST, FP8_LARGEST, propagate_nan=tl.PropagateNan.ALL)
        b = tl.clamp(b, -FP8_LARGEST, FP8_LARGEST, propagate_nan=tl.PropagateNan.ALL)
    if ROUND_FIRST:
        a, b = round_to_fp8(a), round_to_fp8(b)
    tl.store(cache, a.to(cache.dtype.element_ty), mask=is_a)
    tl.store(cache + half, b.to(cache.dtype.element_ty), mask=is_b)


@triton.jit
def store_kernel(
    q,  # [N, num_heads, HEAD_DIM], rotated in place if IS_ROTATED
    k,  # [N, num_kv_heads, HEAD_DIM]
    v,  # the same shape; strides of its own
    cos,  # [N, HEAD_DIM / 2]
    sin,
    k_cache,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_DIM]
    v_cache,  # the same, with the same strides
    slot_mapping,  # [N]
    q_row_stride,
    q_head_stride,
    k_row_stride,
    k_head_stride,
    v_row_stride,
    v_head_stride,
    kv_block_stride,
    kv_token_stride,
    kv_head_stride,
    QUERIES_PER_KV: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,  # QUERIES_PER_KV and
    DIMS: tl.constexpr,  # half of HEAD_DIM, both rounded up to powers of two
    IS_ROTATED: tl.constexpr,
    IS_FP8: tl.constexpr,
    ROUND_FIRST: tl.constexpr,  # only for fp8 in the interpreter
):
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    half: tl.constexpr = (HEAD_DIM + 1) // 2
    dims = tl.arange(0, DIMS)
    is_a = dims < half
    is_b = dims < HEAD_DIM - half
    keys = k + token * k_row_stride + kv_head * k_head_stride + dims
    a = tl.load(keys, mask=is_a).to(tl.float32)
    b = tl.load(keys + half, mask=is_b).to(tl.float32)
    if IS_ROTATED:
        c = tl.load(cos + token * half + dims, mask=is_a)
        s = tl.load(sin + token * half + dims, mask=is_a)
        a, b = a * c - b * s, b * c + a * s
        rows = tl.arange(0, ROWS)[:, None]
        is_query = (rows < QUERIES_PER_KV) & is_a[None, :]
        queries = q + token * q_row_stride + (kv_head * QUERIES_PER_KV + rows) * q_head_stride + dims[None, :]
        q_a = tl.load(queries, mask=is_query).to(tl.float32)
        q_b = tl.load(queries + half, mask=is_query).to(tl.float32)
        tl.store(queries, (q_a * c[None, :] - q_b * s[None, :]).to(q.dtype.element_ty), mask=is_query)
        tl.store(queries + half, (q_b * c[None, :] + q_a * s[None, :]).to(q.dtype.element_ty), mask=is_query)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot < 0:
        return
    place = slot // BLOCK_SIZE * kv_block_stride + slot % BLOCK_SIZE * kv_token_stride
    place += kv_head * kv_head_stride + dims
    store_halves(k_cache + place, a, b, is_a, is_b, half, IS_FP8, ROUND_FIRST)
    values = v + token * v_row_stride + kv_head * v_head_stride + dims
    a = tl.load(values, mask=is_a).to(tl.float32)
    b = tl.load(values + half, mask=is_b).to(tl.float32)
    store_halves(v_cache + place, a, b, is_a, is_b, half, IS_FP8, ROUND_FIRST)


def store(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    q: Tensor | None = None,
    angles: tuple[Tensor, Tensor] | None = None,
) -> None:
    """`write_kv` into a cache of any format, after rotating queries and keys.

    Args: as for `write_kv`, and
        q: [N, num_heads, head_dim], rotated in place.
        angles: cosines and sines, each float32 [N, head_dim / 2]; None: no rotation, and q is not needed.
    """
    check_write(k, v, k_cache, v_cache, slot_mapping)
    (num_tokens, num_kv_heads, head_dim), block_size = k.shape, k_cache.shape[1]
    q = k if angles is None else q
    for name, table in zip(("cos", "sin"), angles or ()):
        if table.shape != (num_tokens, head_dim / 2) or not table.is_contiguous():
            raise ValueError(
                f"{name} has shape {list(table.shape)}: give [{num_tokens}, {head_dim} / 2], row by row"
            )
    check_new_tensor("q", q, k_cache)
    if num_tokens == 0:
        return
    queries_per_kv = q.shape[1] // num_kv_heads
    rows, dims = triton.next_power_of_2(queries_per_kv), triton.next_power_of_2((head_dim + 1) // 2)
    is_fp8 = k_cache.element_size() == 1
    strides: list[Any] = [s for x in (q, k, v) for s in x.stride()[:2]]
    store_kernel[(num_tokens, num_kv_heads)](
        q, k, v, *(angles or (q, q)), k_cache, v_cache, slot_mapping, *strides, *k_cache.stride()[:3],
        QUERIES_PER_KV=queries_per_kv, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, ROWS=rows, DIMS=dims,
        IS_ROTATED=angles is not None, IS_FP8=is_fp8, ROUND_FIRST=is_fp8 and INTERPRETED,
        num_warps=1 if rows * dims <= 256 else 4,
    )  # fmt: skip
