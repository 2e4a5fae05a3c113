"""The arithmetic of GPU memory: bytes of KV cache per token, memory beside the weights, users that fit."""

from phase1_tokens_embeddings.weights.cards import Card
from phase1_tokens_embeddings.weights.model_shapes import ModelShape
from phase1_tokens_embeddings.weights.weight_formats import weight_bytes

GB, GIB = 10**9, 2**30
# The share of a card for weights and KV cache. A tenth is left to activations, kernels and the CUDA runtime. (vLLM's
# `gpu_memory_utilization` is 0.92, and the activations come out of that share.)
USABLE = 0.9
KV_BYTES = {"FP16": 2, "FP8": 1}


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_value: int = 2) -> int:
    """Bytes of KV cache that one token takes, in all layers together.

    Two (a key and a value) x layers x KV heads x numbers per head x bytes per number.

    >>> kv_bytes_per_token(num_layers=12, num_kv_heads=12, head_dim=64)  # GPT-2 in FP16
    36864

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention" (2023), section 3.

    Raises:
        ValueError: a number below 1.
    """
    factors = (num_layers, num_kv_heads, head_dim, bytes_per_value)
    if min(factors) < 1:
        raise ValueError(f"layers, KV heads, head size and bytes must be 1 or more, not {factors}")
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_value


def kv_per_token(shape: ModelShape, bytes_per_value: int = 2) -> int:
    """`kv_bytes_per_token` of a model."""
    return kv_bytes_per_token(shape.num_layers, shape.num_kv_heads, shape.head_dim, bytes_per_value)


def kv_of_text(shape: ModelShape, tokens: int, bytes_per_value: int = 2) -> int:
    """Bytes of KV cache that a text of so many tokens needs. In a layer with a window, only its last ones are needed.

    (An engine that allocates memory per layer needs just that. An engine whose blocks hold all layers must keep a token
    as long as any layer needs it.)
    """
    kept = sum(min(tokens, shape.window(layer) or tokens) for layer in range(shape.num_layers))
    return kept * kv_bytes_per_token(1, shape.num_kv_heads, shape.head_dim, bytes_per_value)


def bytes_for_kv(shape: ModelShape, card: Card, precision: str = "FP16") -> int:
    """Bytes that are left for the KV cache; negative if not even the weights fit. Raises ValueError for an unknown precision."""
    return int(card.memory_bytes * USABLE) - weight_bytes(shape, precision)


def users_that_fit(
    shape: ModelShape, card: Card, context: int, precision: str = "FP16", bytes_per_value: int = 2
) -> int:
    """How many users with `context` tokens each fit at the same time. 0 if the model itself does not.

    Raises:
        ValueError: a context below 1, or longer than the model was made for.
    """
    if context < 1:
        raise ValueError(f"context is {context}: a text has at least 1 token")
    if context > shape.max_context:
        raise ValueError(
            f"context {context:,} is too long: {shape.name} reads at most {shape.max_context:,} tokens"
        )
    room = max(0, bytes_for_kv(shape, card, precision))
    return room // kv_of_text(shape, context, bytes_per_value)
