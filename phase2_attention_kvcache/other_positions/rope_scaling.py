"""Rotations slowed for contexts longer than those trained first, as `rope_scaling` of a config.json asks.

    linear   every pair turns slower, by `factor`
    llama3   slow pairs (fewer than `low_freq_factor` turns in the original context) turn slower by `factor`, fast ones (more
             than `high_freq_factor` turns) stay, with a smooth passage between
    yarn     the same, but the passage lies between the pairs `beta_fast` and `beta_slow`; queries and keys grow longer: over a
             longer context softmax spreads its weight over more tokens, and they make up for it

The library transformers computes them; here its settings are checked.

Sources: Meta's Llama 3.1 (transformers, `modeling_rope_utils.py`); Peng et al. 2023 (YaRN), sections 3.2 and 3.4.
"""

from types import SimpleNamespace
from typing import Any

import torch

from labkit.foreign import quoted
from phase2_attention_kvcache.model.positions import kind_of

NEEDED = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
OPTIONAL = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")


def slow_down(frequencies: torch.Tensor, theta: float, scaling: dict[str, Any]) -> torch.Tensor:
    """The frequencies [head_dim / 2] of `rotary_frequencies`, scaled.

    Raises:
        ValueError: a missing or impossible value.
    """
    return _computed(2 * len(frequencies), theta, scaling)[0]


def amplitude(scaling: dict[str, Any]) -> float:
    """The factor for cosines and sines: 1, and for "yarn" a little more."""
    return _computed(2, 10_000.0, scaling)[1]


def _computed(head_dim: int, theta: float, scaling: dict[str, Any]) -> tuple[torch.Tensor, float]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # takes seconds

    kind = kind_of(scaling)
    for name in (*NEEDED[kind], *(name for name in OPTIONAL if scaling.get(name) is not None)):
        value = scaling.get(name)
        if type(value) not in (int, float) or not 1e-6 <= value <= 1e9:
            raise ValueError(
                f"rotary scaling {kind!r} needs {name} above 0, got {quoted(value)} (1e-6 to 1e9)"
            )
    if kind == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        raise ValueError(f"low_freq_factor {low} must be below high_freq_factor {high}")
    config = SimpleNamespace(  # what that function asks of a config
        rope_parameters=scaling | {"rope_theta": theta}, standardize_rope_params=lambda: None,
        head_dim=head_dim, hidden_size=head_dim, num_attention_heads=1,
    )  # fmt: skip
    return ROPE_INIT_FUNCTIONS[kind](config)
