"""Keys and values in 8 bits: half the memory per token, so twice the requests.

    auto                   as the model computes, 16 or 32 bits
    fp8                    one byte a number, E4M3 (see `quantized_formats.py`); no scale
    int8_per_token_head    one byte a number, and a scale for each token and head: absmax

Keys and values come one token at a time and are never changed, so each is quantized when it is stored and dequantized when it
is read. A scale per token and head does not depend on other tokens. fp8 here has none, as with vLLM's default scale of 1.0: its
normal numbers reach from 0.016 to 448, the smallest is 0.002. Values outside are clipped, so vLLM recommends calibrated scales.

The names are vLLM's (vllm/config/cache.py).
"""

import torch
from torch import Tensor

from phase1_tokens_embeddings.weights.memory_math import kv_per_token
from phase1_tokens_embeddings.weights.model_shapes import ModelShape
from phase2_attention_kvcache.model.caches import NoCache
from phase2_attention_kvcache.model.config import ModelConfig
from phase2_attention_kvcache.quantization.quantized_formats import FP8, FP8_MAX, at_least_tiny

KV_CACHE_DTYPES = ("auto", "fp8", "int8_per_token_head")
SCALE = torch.float16


def check_kv_cache_dtype(name: str) -> None:
    if name not in KV_CACHE_DTYPES:
        raise ValueError(f"unknown kv_cache_dtype {name!r}: use {', '.join(KV_CACHE_DTYPES)}")


def stored_dtype(kv_cache_dtype: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of the stored numbers. `dtype`: that of the model's activations."""
    return {"auto": dtype, "fp8": FP8, "int8_per_token_head": torch.int8}[kv_cache_dtype]


def quantize_kv(x: Tensor, kv_cache_dtype: str) -> tuple[Tensor, Tensor | None]:
    """Quantize keys or values [N, num_kv_heads, head_dim]: codes of that shape, and scales [N, num_kv_heads].

    >>> quantize_kv(torch.tensor([[[0.5, -1.27]]]), "int8_per_token_head")[0]
    tensor([[[  50, -127]]], dtype=torch.int8)
    """
    if kv_cache_dtype == "fp8":
        return x.float().clamp(-FP8_MAX, FP8_MAX).to(FP8), None
    if kv_cache_dtype == "auto":
        return x, None
    x = x.float()
    scales = (x.abs().amax(-1) / 127).to(SCALE)
    codes = (x / at_least_tiny(scales.float())[..., None]).round().clamp(-127, 127)
    return codes.to(torch.int8), scales


def dequantize_kv(codes: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The reverse of `quantize_kv`, in the model's dtype."""
    if scales is not None:
        return (codes.float() * scales.float()[..., None]).to(dtype)
    return codes.to(dtype)


class RoundingCache:
    """Stores nothing, like `NoCache`, but attends to keys and values after quantizing and dequantizing them.

    It shows what quantized keys and values do to an answer; phase 3 stores them.
    `config`: as for `NoCache`.
    """

    def __init__(self, kv_cache_dtype: str, config: ModelConfig | None = None) -> None:
        check_kv_cache_dtype(kv_cache_dtype)
        self.kv_cache_dtype = kv_cache_dtype
        self._behind = NoCache(config)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (dequantize_kv(*quantize_kv(x, self.kv_cache_dtype), x.dtype) for x in (k, v))
        return self._behind.attend(layer, q, k, v)


def kv_bytes_of_token(shape: ModelShape, kv_cache_dtype: str, dtype: torch.dtype) -> int:
    """Bytes of a token in all layers, scales included."""
    nbytes = kv_per_token(shape, stored_dtype(kv_cache_dtype, dtype).itemsize)
    if kv_cache_dtype == "int8_per_token_head":
        nbytes += 2 * shape.num_layers * shape.num_kv_heads * SCALE.itemsize
    return nbytes
