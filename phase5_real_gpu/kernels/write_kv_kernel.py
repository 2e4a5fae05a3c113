"""Storing a step's new keys and values in their slots: one program a token.

    slot = block * block_size + offset          -1: a row of padding, nothing is stored

Nothing is computed; bytes move. With an fp8 cache each number is divided by a scale and rounded to 8 bits on
the way, which halves the bytes that every later step has to read.

Source: vLLM, csrc/cache_kernels.cu (reshape_and_cache_flash), for the layout and the meaning of a slot.
"""

import torch
from torch import Tensor

from phase5_real_gpu.kernels.kernel_checks import check_cache, check_integers, check_new_tensor, check_slots
from phase5_real_gpu.kernels.triton_setup import INTERPRETED, tl, triton

FP8_LARGEST = tl.constexpr(448.0)  # the largest number of float8_e4m3fn; beyond it there is only NaN


@triton.jit
def round_to_fp8(x):
    """float32 within -448 to 448, to the nearest number that 8 bits can hold; still float32.

    A GPU's conversion does this by itself. The interpreter's loses a carry (1.97 becomes 1.0), so there it is done
    beforehand: adding and subtracting a number so large that nothing finer than a step stays. It does not know NaN
    either. The bits of 480, the next number after 448, are those of NaN.
    """
    exponent = ((x.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    step = ((tl.maximum(exponent, -6) - 3 + 127) << 23).to(tl.float32, bitcast=True)
    large = 12582912.0 * step  # 1.5 x 2^23
    return tl.where(x == x, (x + large) - large, 480.0)


@triton.jit
def write_kv_kernel(
    k,  # [N, HEADS, HEAD_DIM]
    v,  # the same shape; strides of its own
    k_cache,  # [num_blocks, BLOCK_SIZE, HEADS, HEAD_DIM]
    v_cache,  # the same, with the same strides
    slot_mapping,  # [N]
    k_scale,
    v_scale,
    k_row_stride,
    k_head_stride,
    v_row_stride,
    v_head_stride,
    kv_block_stride,
    kv_token_stride,
    kv_head_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS_2: tl.constexpr,  # both rounded up to powers of two
    DIMS: tl.constexpr,
    IS_FP8: tl.constexpr,
    ROUND_FIRST: tl.constexpr,  # only for the interpreter
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot < 0:
        return
    heads = tl.arange(0, HEADS_2)[:, None]
    dims = tl.arange(0, DIMS)[None, :]
    exists = (heads < HEADS) & (dims < HEAD_DIM)
    keys = tl.load(k + token * k_row_stride + heads * k_head_stride + dims, mask=exists)
    values = tl.load(v + token * v_row_stride + heads * v_head_stride + dims, mask=exists)
    if IS_FP8:
        # NaN stays NaN: a model whose numbers broke down must not look as if it worked.
        keys = keys.to(tl.float32) / k_scale
        values = values.to(tl.float32) / v_scale
        keys = tl.clamp(keys, -FP8_LARGEST, FP8_LARGEST, propagate_nan=tl.PropagateNan.ALL)
        values = tl.clamp(values, -FP8_LARGEST, FP8_LARGEST, propagate_nan=tl.PropagateNan.ALL)
        if ROUND_FIRST:
            keys = round_to_fp8(keys)
            values = round_to_fp8(values)
    place = (
        (slot // BLOCK_SIZE) * kv_block_stride
        + (slot % BLOCK_SIZE) * kv_token_stride
        + heads * kv_head_stride
        + dims
    )
    tl.store(k_cache + place, keys.to(k_cache.dtype.element_ty), mask=exists)
    tl.store(v_cache + place, values.to(v_cache.dtype.element_ty), mask=exists)


def write_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    checked: bool = False,
) -> None:
    """Store each token's key and value in its slot.

    Args:
        k, v: [N, num_kv_heads, head_dim].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim]; changed in place.
        slot_mapping: [N] integers; -1: this token is not stored.
        k_scale, v_scale: fp8 keys and values are divided by them before rounding.
        checked: look into the slots first. That waits for the GPU, so only the interpreter always does.

    Raises:
        ValueError: shapes, types or devices that do not fit; a slot outside the pool or named twice (if
        `checked`). LabError: Triton is not installed.
    """
    check_cache(k_cache, v_cache)
    num_blocks, block_size, num_kv_heads, head_dim = k_cache.shape
    for name, new in (("k", k), ("v", v)):
        if new.shape != (len(slot_mapping), num_kv_heads, head_dim):
            raise ValueError(
                f"{name} has shape {list(new.shape)}: {len(slot_mapping)} slots and this cache need "
                f"{[len(slot_mapping), num_kv_heads, head_dim]}"
            )
        check_new_tensor(name, new, k_cache)
    check_integers("slot_mapping", slot_mapping, k_cache.device)
    if checked or INTERPRETED:
        check_slots(slot_mapping, num_blocks * block_size)
    if len(slot_mapping) == 0:
        return
    write_kv_kernel[(len(slot_mapping),)](
        k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale,
        *k.stride()[:2], *v.stride()[:2], *k_cache.stride()[:3],
        HEADS=num_kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        HEADS_2=triton.next_power_of_2(num_kv_heads), DIMS=triton.next_power_of_2(head_dim),
        IS_FP8=k_cache.dtype == torch.float8_e4m3fn, ROUND_FIRST=INTERPRETED, num_warps=4,
    )  # fmt: skip
