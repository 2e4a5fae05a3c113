"""Keys and values in 8 bits: half the memory, so twice the tokens in a cache.

Changes: what a `KVStorage` writes is rounded to fp8, or to int8 with a scale for each token and head; what it reads is
widened again. Attaches to: `KVStorage.stored_dtype`, `write`, `read`.
"""

from typing import Any

import torch
from torch import Tensor

from phase2_attention_kvcache.model.config import ModelConfig
from phase2_attention_kvcache.quantization.kv_formats import (
    SCALE,
    check_kv_cache_dtype,
    dequantize_kv,
    quantize_kv,
    stored_dtype,
)
from phase3_paged_attention.paging.kv_storage import KVStorage


class QuantizedKVStorage(KVStorage):
    """
    Args:
        kv_cache_dtype: "fp8" or "int8_per_token_head". Others: see `KVStorage`.

    Attributes:
        scales: for "int8_per_token_head" as `data` without head_dim, otherwise None.
    """

    rounds = True

    def __init__(self, config: ModelConfig, *args: Any, kv_cache_dtype: str, **kwargs: Any) -> None:
        check_kv_cache_dtype(kv_cache_dtype)
        self.kv_cache_dtype = kv_cache_dtype
        super().__init__(config, *args, **kwargs)
        # Not every operation that moves numbers knows 8-bit floats; all know bytes.
        self._slots = [[slots.view(torch.uint8) for slots in layers] for layers in self._slots]
        self.scales = None
        if kv_cache_dtype == "int8_per_token_head":
            self.scales = torch.empty(self.data.shape[:-1], dtype=SCALE, device=self.device)

    @property
    def stored_dtype(self) -> torch.dtype:
        return stored_dtype(self.kv_cache_dtype, self.dtype)

    @property
    def tensors(self) -> list[Tensor]:
        return [self.data] if self.scales is None else [self.data, self.scales]

    def write(self, layer: int, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
        for kind, x in ((0, k), (1, v)):
            codes, scales = quantize_kv(x, self.kv_cache_dtype)
            self._slots[kind][layer].index_copy_(0, slot_mapping, codes.view(torch.uint8))
            if scales is not None:
                self.scales[kind, layer].flatten(0, 1).index_copy_(0, slot_mapping, scales)

    def read(self, kind: int, layer: int, block_ids: Tensor) -> Tensor:
        codes = self.data.view(torch.uint8)[kind, layer].index_select(0, block_ids).view(self.data.dtype)
        scales = None if self.scales is None else self.scales[kind, layer].index_select(0, block_ids)
        return dequantize_kv(codes, scales, self.dtype)
