"""Stores a step's new keys and values in their slots: one program per token.

    slot = block * block_size + offset          -1: a row of padding, nothing is stored

Source: vLLM, csrc/cache_kernels.cu (reshape_and_cache_flash), for the layout and the meaning of a slot.
"""

from torch import Tensor

from phase5_real_gpu.kernels.kernel_checks import check_write
from phase5_real_gpu.kernels.triton_setup import tl, triton


@triton.jit
def write_kv_kernel(
    k,  # [N, HEADS, HEAD_DIM]
    v,  # the same shape; strides of its own
    k_cache,  # [num_blocks, BLOCK_SIZE, HEADS, HEAD_DIM]
    v_cache,  # the same, with the same strides
    slot_mapping,  # [N]
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
    place = (
        (slot // BLOCK_SIZE) * kv_block_stride
        + (slot % BLOCK_SIZE) * kv_token_stride
        + heads * kv_head_stride
        + dims
    )
    tl.store(k_cache + place, keys, mask=exists)
    tl.store(v_cache + place, values, mask=exists)


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store each token's key and value in its slot.

    Args:
        k, v: [N, num_kv_heads, head_dim].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim]; changed in place.
        slot_mapping: [N] integers; -1: this token is not stored.

    Raises:
        ValueError: arguments that do not match; in the interpreter also a slot outside the pool, or one that is used twice.
    """
    check_write(k, v, k_cache, v_cache, slot_mapping)
    if len(slot_mapping) == 0:
        return
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    write_kv_kernel[(len(slot_mapping),)](
        k, v, k_cache, v_cache, slot_mapping,
        *k.stride()[:2], *v.stride()[:2], *k_cache.stride()[:3],
        HEADS=num_kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        HEADS_2=triton.next_power_of_2(num_kv_heads), DIMS=triton.next_power_of_2(head_dim),
        num_warps=4,
    )  # fmt: skip
