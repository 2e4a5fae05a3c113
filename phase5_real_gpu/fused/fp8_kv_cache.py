"""A KV cache in fp8 (8-bit floats): half the memory of 16 bits, and half the bytes that each later step reads.

Attaches to `TritonPagedKVCache`: stored numbers are keys and values divided by a scale and rounded to 8 bits, and
the attention kernels, which widen numbers of one byte as they read them, get the scales back as factors:

    stored = round(key / k_scale)                    scores = q . stored x k_scale x scale
    stored = round(value / v_scale)                  out    = (weights . stored) x v_scale

Source: vLLM, csrc/cache_kernels.cu (reshape_and_cache_flash with kv_cache_dtype="fp8"), for the meaning of the scales.
"""

import torch
from torch import Tensor

from phase2_attention_kvcache.model.config import ModelConfig
from phase5_real_gpu.kernels import TritonPagedKVCache
from phase5_real_gpu.kernels.kernel_checks import check_write
from phase5_real_gpu.kernels.triton_setup import INTERPRETED, capability, tl, triton

FP8 = torch.float8_e4m3fn
FP8_CAPABILITY = (8, 9)
FP8_LARGEST = tl.constexpr(448.0)  # the largest number of float8_e4m3fn; beyond it there is only NaN


def fp8_problem() -> str | None:
    """Why this card cannot hold keys and values in fp8, in a line; None if it can."""
    if INTERPRETED or capability() >= FP8_CAPABILITY:
        return None
    has = ".".join(map(str, capability()))
    return f"this card has compute capability {has}, an fp8 KV cache needs 8.9 or more: use a 16-bit one"


@triton.jit
def round_to_fp8(x):
    """float32 within -448 to 448, to the nearest number that 8 bits can hold; still float32.

    A GPU's conversion does this by itself. The interpreter's loses a carry (1.97 becomes 1.0), so there it is done
    beforehand: adding and subtracting a number so large that no bit finer than a step survives. It does not know NaN
    either. The bits of 480, the next number after 448, are those of NaN.
    """
    exponent = ((x.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    step = ((tl.maximum(exponent, -6) - 3 + 127) << 23).to(tl.float32, bitcast=True)
    large = 12582912.0 * step  # 1.5 x 2^23
    return tl.where(x == x, (x + large) - large, 480.0)


@triton.jit
def write_fp8_kernel(
    new,  # [N, HEADS, HEAD_DIM]: keys or values
    cache,  # [num_blocks, BLOCK_SIZE, HEADS, HEAD_DIM] fp8
    slot_mapping,  # [N]
    scale,
    row_stride,
    head_stride,
    kv_block_stride,
    kv_token_stride,
    kv_head_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS_2: tl.constexpr,  # both rounded up to powers of two
    DIMS: tl.constexpr,
    ROUND_FIRST: tl.constexpr,  # only for the interpreter
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot < 0:
        return
    heads = tl.arange(0, HEADS_2)[:, None]
    dims = tl.arange(0, DIMS)[None, :]
    exists = (heads < HEADS) & (dims < HEAD_DIM)
    x = tl.load(new + token * row_stride + heads * head_stride + dims, mask=exists).to(tl.float32) / scale
    # NaN stays NaN: a model whose numbers broke down must not look as if it worked.
    x = tl.clamp(x, -FP8_LARGEST, FP8_LARGEST, propagate_nan=tl.PropagateNan.ALL)
    if ROUND_FIRST:
        x = round_to_fp8(x)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    place = block * kv_block_stride + offset * kv_token_stride + heads * kv_head_stride + dims
    tl.store(cache + place, x.to(cache.dtype.element_ty), mask=exists)


def write_kv_fp8(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    *,
    checked: bool = False,
) -> None:
    """`write_kv` into a cache of torch.float8_e4m3fn.

    Args:
        k_scale, v_scale: keys and values are divided by them before rounding.
    """
    check_write(k, v, k_cache, v_cache, slot_mapping, checked)
    if k_cache.dtype != FP8:
        raise ValueError(f"the cache is {k_cache.dtype}, not {FP8}: use write_kv")
    block_size, heads, head_dim = k_cache.shape[1:]
    for new, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        if len(slot_mapping):
            write_fp8_kernel[(len(slot_mapping),)](
                new, cache, slot_mapping, scale, *new.stride()[:2], *cache.stride()[:3],
                HEADS=heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, HEADS_2=triton.next_power_of_2(heads),
                DIMS=triton.next_power_of_2(head_dim), ROUND_FIRST=INTERPRETED, num_warps=4,
            )  # fmt: skip


class FP8PagedKVCache(TritonPagedKVCache):
    """Keys and values of many requests in blocks of fp8.

    Args: as for `TritonPagedKVCache`, and
        dtype: of q, k and v. k_scale, v_scale: keys and values are divided by them when stored.

    Raises:
        ValueError: this card has no fp8; a scale that is not above 0.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        *,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> None:
        if problem := fp8_problem():
            raise ValueError(problem)
        if not (k_scale > 0 and v_scale > 0):
            raise ValueError(f"k_scale is {k_scale}, v_scale {v_scale}: both must be above 0")
        super().__init__(config, num_blocks, block_size, FP8, device, compute_dtype=dtype)
        self.scales = k_scale, v_scale
        for options in self.options:
            options |= dict(scale=options["scale"] * k_scale, out_scale=v_scale)

    def store(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        write_kv_fp8(k, v, k_cache, v_cache, self.step.slots, *self.scales)
