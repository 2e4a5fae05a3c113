"""Rotations slowed for contexts longer than those trained first, as `rope_scaling` of a config.json asks.

    linear   every pair turns slower, by `factor`
    llama3   slow pairs (fewer than `low_freq_factor` turns in the original context) turn slower by `factor`, fast ones (more
             than `high_freq_factor` turns) stay, with a smooth passage between
    yarn     the same, but the passage lies between the pairs `beta_fast` and `beta_slow`; queries and keys grow longer

Sources: Meta's Llama 3.1 (transformers, `modeling_rope_utils.py`); Peng et al. 2023 (YaRN), sections 3.2 and 3.4.
"""

import math
from typing import Any

import torch

from labkit.foreign import quoted
from phase2_attention_kvcache.model.positions import kind_of


def slow_down(frequencies: torch.Tensor, theta: float, scaling: dict[str, Any]) -> torch.Tensor:
    """The frequencies [head_dim / 2] of `rotary_frequencies`, scaled.

    Raises:
        ValueError: a missing or impossible value.
    """
    match kind_of(scaling):
        case "linear":
            return frequencies / _positive(scaling, "factor")
        case "llama3":
            return _llama3(frequencies, scaling)
        case _:
            return _yarn(frequencies, theta, scaling)


def amplitude(scaling: dict[str, Any]) -> float:
    """The factor for cosines and sines: 1, and for "yarn" a little more.

    Over a longer context softmax spreads its weight over more tokens. Longer queries and keys make up for it.
    """
    if kind_of(scaling) != "yarn":
        return 1.0
    if scaling.get("attention_factor") is not None:
        return _positive(scaling, "attention_factor")
    factor, share, all_shares = (scaling.get(k) for k in ("factor", "mscale", "mscale_all_dim"))

    def of_share(share: float) -> float:
        return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0

    return of_share(share) / of_share(all_shares) if share and all_shares else of_share(1.0)


def _llama3(frequencies: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, context = (_positive(scaling, name) for name in names)
    if low >= high:
        raise ValueError(f"low_freq_factor {low} must be below high_freq_factor {high}")
    turns = context / (2 * math.pi / frequencies)  # full turns within the original context
    fast = (turns - low) / (high - low)  # 0: as slow as the slow ones, 1: as fast as the fast ones
    between = (1 - fast) * frequencies / factor + fast * frequencies
    return torch.where(turns < low, frequencies / factor, torch.where(turns > high, frequencies, between))


def _yarn(frequencies: torch.Tensor, theta: float, scaling: dict[str, Any]) -> torch.Tensor:
    """As `_llama3`, with a passage that is straight in the number of the pair."""
    scaling = {"beta_fast": 32, "beta_slow": 1} | {k: v for k, v in scaling.items() if v is not None}
    names = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
    factor, context, fast, slow = (_positive(scaling, name) for name in names)
    pairs = len(frequencies)
    # The pair that makes so many turns in the original context: theta^(-i / pairs) * context = turns * 2 pi.
    ends = [pairs * math.log(context / (turns * 2 * math.pi)) / math.log(theta) for turns in (fast, slow)]
    if scaling.get("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    first, last = max(ends[0], 0), min(ends[1], 2 * pairs - 1)
    slowed = ((torch.arange(pairs) - first) / (last - first or 0.001)).clamp(0, 1)
    return frequencies / factor * slowed + frequencies * (1 - slowed)


def _positive(scaling: dict[str, Any], name: str) -> float:
    value = scaling.get(name)
    if type(value) not in (int, float) or not 1e-6 <= value <= 1e9:
        raise ValueError(
            f"rotary scaling {kind_of(scaling)!r} needs {name} above 0, got {quoted(value)} (1e-6 to 1e9)"
        )
    return value
