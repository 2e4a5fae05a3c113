"""Quantization: of the weights while a model is loaded, of keys and values as they are stored.

Changes: less memory, so longer contexts and more users, for answers that differ slightly.
Attaches to: the loading of a model (`Feature.prepare_model`), and the storage of the cache (`Feature.kv_storage`). How it
is done: phase 2, quantization; phase 3, sharing/quantized_storage.py.
"""

from typing import Any

from phase2_attention_kvcache.model.transformer import Transformer
from phase2_attention_kvcache.quantization.kv_formats import check_kv_cache_dtype, kv_bytes_of_token
from phase2_attention_kvcache.quantization.quantized_formats import find_method
from phase2_attention_kvcache.quantization.quantized_linear import is_quantized, quantize_model
from phase3_paged_attention.paging import KVStorage
from phase3_paged_attention.sharing import QuantizedKVStorage
from phase4_scheduler.assembly import Feature
from phase4_scheduler.engine.config import EngineConfig


class QuantizedWeights(Feature):
    """`quantization`: "int8", "fp8", "int4", "q8_0" or "q4_0"; None: the weights as the file has them."""

    settings = {"quantization": None}
    refuses = {"Executors": "weights are quantized on one device"}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.quantization is not None:
            self.quantization = find_method(self.quantization)

    def prepare_model(self, model: Transformer) -> None:
        if self.quantization is None:
            return
        if is_quantized(model):
            raise ValueError("this model is quantized already: leave quantization out")
        quantize_model(model, self.quantization)


class QuantizedKVCache(Feature):
    """`kv_cache_dtype`: "auto" (as the model computes), "fp8" or "int8_per_token_head"."""

    settings = {"kv_cache_dtype": "auto"}
    refuses = {"KVTransfer": "blocks are handed over as the model computes them: kv_cache_dtype 'auto'"}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        check_kv_cache_dtype(self.kv_cache_dtype)

    def kv_bytes_per_token(self, model: Transformer, nbytes: int) -> int:
        return kv_bytes_of_token(model.config, self.kv_cache_dtype, model.dtype)

    def kv_storage(self, model: Transformer, config: EngineConfig, num_blocks: int) -> KVStorage:
        shape = (model.config, num_blocks, config.block_size, model.dtype, model.device)
        return QuantizedKVStorage(*shape, kv_cache_dtype=self.kv_cache_dtype)
