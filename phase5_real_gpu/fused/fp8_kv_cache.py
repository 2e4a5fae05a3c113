"""A KV cache in fp8 (8-bit floats): half the memory of 16 bits, and half the bytes that each later step reads.

Attaches to `TritonPagedKVCache`: keys and values are rounded to 8 bits as they are stored, and the attention kernels widen
numbers of one byte as they read them. There are no scales, as in vLLM where a checkpoint brings none: keys and values of usual
models lie well within the largest number, 448.

Source: vLLM, csrc/cache_kernels.cu (reshape_and_cache_flash with kv_cache_dtype="fp8").
"""

import torch
from torch import Tensor

from phase2_attention_kvcache.model.config import ModelConfig
from phase3_paged_attention.paging import KVStorage
from phase5_real_gpu.fused.store_kernel import store
from phase5_real_gpu.kernels import TritonPagedKVCache
from phase5_real_gpu.kernels.kernel_checks import FP8
from phase5_real_gpu.kernels.triton_setup import INTERPRETED, capability

FP8_CAPABILITY = (8, 9)


def fp8_problem() -> str | None:
    """Why this card cannot hold keys and values in fp8, in a line; None if it can."""
    if INTERPRETED or capability() >= FP8_CAPABILITY:
        return None
    has = ".".join(map(str, capability()))
    return f"this card has compute capability {has}, an fp8 KV cache needs 8.9 or more: use a 16-bit one"


class FP8PagedKVCache(TritonPagedKVCache):
    """Keys and values of many requests in blocks of fp8.

    Args: as for `TritonPagedKVCache`, and
        dtype: of q, k and v. storage: of fp8.

    Raises:
        ValueError: this card has no fp8.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        *,
        storage: KVStorage | None = None,
    ) -> None:
        if problem := fp8_problem():
            raise ValueError(problem)
        super().__init__(config, num_blocks, block_size, FP8, device, compute_dtype=dtype, storage=storage)

    def store(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        store(k, v, k_cache, v_cache, self.step.slots)
