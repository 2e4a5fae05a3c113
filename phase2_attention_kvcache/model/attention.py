"""Attention, by its definition: scores, weights, a weighted sum.

Sources: Vaswani et al. 2017, section 3.2; grouped heads: Ainslie et al. 2023 (GQA); windows: Jiang et al. 2023
(Mistral 7B), section 2; soft cap: Gemma Team 2024 (Gemma 2), section 2.
"""

import torch


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Causal attention of N queries over M keys and values: the readable definition.

    The queries are the last N of the M tokens. The query at position p attends to the keys 0..p, or with a window
    of W to the last W of these.

    Args:
        q: queries [N, num_heads, head_dim].
        k, v: keys and values [M, num_kv_heads, head_dim]; num_heads is a multiple of num_kv_heads.
        scale: scores are multiplied by it; by default 1 / sqrt(head_dim).
        window: number of tokens that a query attends to, itself included (Mistral); None: all up to itself.
        softcap: each score s becomes softcap x tanh(s / softcap): small scores hardly change, large
            ones approach softcap but never reach it (Gemma 2).

    Returns:
        [N, num_heads, head_dim], in the dtype of `q`. Computed in float32 (float64 for float64
        input): sums over thousands of tokens lose too much precision in 16 bits.

    Raises:
        ValueError: the shapes do not fit, num_heads is not a multiple of num_kv_heads, or there are more queries than keys.

    A future token has a weight of exactly 0, so finite numbers in its place change nothing. A future *value* that
    is NaN makes the result NaN, because 0 x NaN = NaN: a cache must never return values that were not written
    yet. (A future *key* that is NaN is harmless: its score is overwritten before softmax.)
    """
    if v.shape != k.shape:
        raise ValueError(
            f"k is {[*k.shape]} and v is {[*v.shape]}: every key needs one value of the same length"
        )
    weights = attention_weights(q, k, scale=scale, window=window, softcap=softcap)  # [num_heads, N, M]
    num_queries, num_heads, head_dim = q.shape
    # Query heads that share a key/value head stand next to each other: heads 0..g-1 use key/value head 0.
    num_keys, num_kv_heads, _ = k.shape
    grouped = weights.view(num_kv_heads, num_heads // num_kv_heads, num_queries, num_keys)
    out = torch.einsum("hgnm,mhd->nhgd", grouped, v.to(weights.dtype))
    return out.reshape(num_queries, num_heads, head_dim).to(q.dtype)


def attention_weights(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """The weights [num_heads, N, M] that each query gives to each key. Arguments as in `attention`.

    Each row adds up to 1; future tokens and tokens outside the window have a weight of exactly 0.
    """
    _check_shapes(q, k)
    num_queries, num_heads, head_dim = q.shape
    num_keys, num_kv_heads, _ = k.shape
    scale = head_dim**-0.5 if scale is None else scale
    number_format = torch.promote_types(q.dtype, torch.float32)

    # 1. Scores: the dot product of every query with every key it could look at.
    grouped = q.to(number_format).view(num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = torch.einsum("nhgd,mhd->hgnm", grouped, k.to(number_format)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    # 2. The mask: minus infinity before softmax is a weight of exactly 0 after it.
    places = torch.arange(num_keys, device=q.device)
    age = places[num_keys - num_queries :, None] - places[None, :]  # [N, M]: tokens from the key to the query
    unseen = age < 0 if window is None else (age < 0) | (age >= window)
    scores = scores.masked_fill(unseen, float("-inf"))
    # 3. Scores to weights.
    return torch.softmax(scores, dim=-1).reshape(num_heads, num_queries, num_keys)


def _check_shapes(q: torch.Tensor, k: torch.Tensor) -> None:
    if q.dim() != 3 or k.dim() != 3:
        raise ValueError(f"q is {[*q.shape]} and k is {[*k.shape]}: both need [tokens, heads, head_dim]")
    if q.shape[2] != k.shape[2]:
        raise ValueError(
            f"q is {[*q.shape]} and k is {[*k.shape]}: their last dimension, head_dim, must be the same"
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{q.shape[1]} query heads cannot share {k.shape[1]} key/value heads evenly: use a divisor"
        )
    if len(q) > len(k):
        raise ValueError(f"{len(q)} queries but only {len(k)} keys: each query needs its own key, too")
