"""The position of a token: a rotation of queries and keys (RoPE). (GPT-2's learned table is an `nn.Embedding`.)

Source: Su et al. 2021 (RoPE), section 3.4.
"""

from importlib import import_module
from typing import Any

import torch

from labkit.foreign import quoted
from phase2_attention_kvcache import ROPE_SCALINGS


def rotary_frequencies(
    head_dim: int, theta: float = 10000.0, scaling: dict[str, Any] | None = None
) -> torch.Tensor:
    """The angle by which each pair of numbers rotates from one position to the next, in radians: [head_dim / 2].

    Pair i rotates by theta^(-2i / head_dim): the first by 1 (a full turn in 6.3 tokens), the last by nearly
    1/theta.

    Args:
        theta: the base; a larger base makes all pairs but the first slower.
        scaling: `rope_scaling` or `rope_parameters` of a config.json. None or kind "default": none. Other kinds: see
            `ROPE_SCALINGS` in this phase's `__init__.py`.

    Raises:
        ValueError: head_dim is odd, theta is not positive, an unknown kind of scaling, a missing or
            impossible value in it.
    """
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"head_dim is {head_dim}: numbers turn in pairs, so it must be even")
    if not theta > 0:
        raise ValueError(f"theta is {theta}: it must be above 0")
    # In float32, like every implementation: the angles must match the ones the model was trained with.
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if scaling is None:
        return frequencies
    kind = kind_of(scaling)
    if kind == "default":
        return frequencies
    if not isinstance(kind, str) or kind not in ROPE_SCALINGS:
        kinds = ", ".join(("default", *ROPE_SCALINGS))
        raise ValueError(f"rotary scaling {quoted(kind)} is not supported: {kinds} are")
    return import_module(ROPE_SCALINGS[kind]).slow_down(frequencies, theta, scaling)


def rotary_amplitude(scaling: dict[str, Any] | None) -> float:
    """The factor for cosines and sines: 1, unless the kind of scaling sets another."""
    kind = kind_of(scaling or {})
    return import_module(ROPE_SCALINGS[kind]).amplitude(scaling) if kind in ROPE_SCALINGS else 1.0


def kind_of(scaling: dict[str, Any]) -> Any:
    """The kind of scaling that a config.json names."""
    return scaling.get("rope_type", scaling.get("type", "default"))  # older files say "type"


def rotary_tables(
    max_positions: int, frequencies: torch.Tensor, dtype: torch.dtype = torch.float32, amplitude: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every angle, times `amplitude`, computed once: two tables [max_positions, head_dim / 2].

    The angles are computed in float32 and only the result is rounded to `dtype`. In bfloat16 the position
    itself would be rounded: 1,001 and 1,002 would both be 1,000.
    """
    positions = torch.arange(max_positions, device=frequencies.device, dtype=frequencies.dtype)
    angles = torch.outer(positions, frequencies)
    return (angles.cos() * amplitude).to(dtype), (angles.sin() * amplitude).to(dtype)


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each pair of numbers by its token's angle.

    Args:
        x: queries or keys [N, heads, head_dim].
        cos, sin: [N, head_dim / 2], the rows of `rotary_tables` at the tokens' positions.

    Returns:
        [N, heads, head_dim] in the dtype of `x`.

    Which numbers form a pair? In the paper neighbours do: 0 and 1, 2 and 3. Here, as in Hugging Face's
    files, number i of the first half goes with number i of the second half. Both are the same up to the
    order of the numbers in a head, and scores do not depend on order; but the weights in a file are made for
    one of the two.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # the same angles for every head
    # The usual rotation of a point (a, b): (a cos - b sin, b cos + a sin).
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
