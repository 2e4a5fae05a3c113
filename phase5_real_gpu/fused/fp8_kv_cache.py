"""A KV cache in fp8 (8-bit floats): half the memory of 16 bits, and half the bytes that each later step reads.

Attaches to `TritonPagedKVCache`: keys and values are rounded to 8 bits as they are stored, and the attention kernels widen
numbers of one byte as they read them. There are no scales, as in vLLM where a checkpoint brings none: keys and values of usual
models lie well within the largest number, 448.

Source: vLLM, csrc/cache_kernels.cu (reshape_and_cache_flash with kv_cache_dtype="fp8").
"""

from typing import Any

import torch
from torch import Tensor

from phase2_attention_kvcache.model.config import ModelConfig
from phase5_real_gpu.fused.store_kernel import store
from phase5_real_gpu.kernels import TritonPagedKVCache
from phase5_real_gpu.kernels.kernel_checks import FP8


class FP8PagedKVCache(TritonPagedKVCache):
    """Keys and values of many requests in blocks of fp8.

    Args: as for `TritonPagedKVCache`, and
        dtype: of q, k and v. storage: of fp8.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: str,
        **more: Any,
    ) -> None:
        super().__init__(config, num_blocks, block_size, FP8, device, compute_dtype=dtype, **more)

    def store(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        store(k, v, k_cache, v_cache, self.step.slots)
