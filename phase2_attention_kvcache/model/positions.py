"""Where a token stands: a table of sines, a learned table, or a rotation of queries and keys.

Sources: Vaswani et al. 2017, section 3.5; Su et al. 2021 (RoPE), section 3.4.
"""

import math
from typing import Any

import torch

from labkit.foreign import quoted


def sinusoidal_table(num_positions: int, d_model: int) -> torch.Tensor:
    """The fixed table [num_positions, d_model] of Vaswani et al., section 3.5.

    Numbers 2i and 2i+1 of a row are the sine and the cosine of position / 10000^(2i / d_model): the hands
    of d_model / 2 clocks, each slower than the one before.

    Raises:
        ValueError: d_model is odd, or a size is below 1.
    """
    if num_positions < 1:
        raise ValueError(f"num_positions is {num_positions}: a table needs at least 1 row")
    if d_model < 2 or d_model % 2:
        raise ValueError(f"d_model is {d_model}: sines and cosines come in pairs, so it must be even")
    angles = torch.outer(torch.arange(num_positions).float(), rotary_frequencies(d_model))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def look_up(table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rows of a table [P, d] for positions [N] -> [N, d], as GPT-2 does with its learned table `wpe`.

    Raises:
        ValueError: a position outside the table. A learned table simply ends: there is no row to take.
    """
    outside = positions[(positions < 0) | (positions >= len(table))]
    if len(outside):
        raise ValueError(
            f"position {outside[0].item()} is outside the table of {len(table)} (0..{len(table) - 1}): "
            "this model's context ends there"
        )
    return table[positions]


def rotary_frequencies(
    head_dim: int, theta: float = 10000.0, scaling: dict[str, Any] | None = None
) -> torch.Tensor:
    """How far each pair of numbers turns from one position to the next, in radians: [head_dim / 2].

    Pair i turns by theta^(-2i / head_dim): the first by 1 (a full turn in 6.3 tokens), the last by nearly
    1/theta.

    Args:
        theta: the base; a larger one makes all pairs but the first slower.
        scaling: `rope_scaling` or `rope_parameters` of a config.json, for contexts longer than those trained
            first. None or kind "default": none. "linear": every turn is divided by `factor`. "llama3": slow
            pairs (fewer than `low_freq_factor` turns in the original context) are divided by `factor`,
            fast ones (more than `high_freq_factor` turns) stay, with a smooth passage between. "yarn": alike, the
            passage lies between pairs `beta_slow` and `beta_fast` (see also `rotary_amplitude`).

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

    kind = scaling.get("rope_type", scaling.get("type", "default"))  # older files say "type"
    if scaling.get("rope_theta", theta) != theta:
        raise ValueError(f"theta is {theta}, but the scaling says rope_theta {quoted(scaling['rope_theta'])}")
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            f"partial_rotary_factor {quoted(scaling['partial_rotary_factor'])} is not supported: only 1 is"
        )
    if kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / _positive(scaling, "factor", kind)
    if kind == "llama3":
        return _llama3(frequencies, scaling)
    if kind == "yarn":
        return _yarn(frequencies, theta, scaling)
    raise ValueError(f"rotary scaling {quoted(kind)} is not supported: default, linear, llama3 and yarn are")


def rope_factors(head_dim: int, theta: float, scaling: dict[str, Any] | None) -> torch.Tensor | None:
    """By how much a scaling of the kind "llama3" slows each pair: [head_dim / 2], the form in which GGUF keeps it.

    None for other kinds: what treats all pairs alike is one number, and has a key of its own there.
    """
    if scaling is None or scaling.get("rope_type", scaling.get("type")) != "llama3":
        return None
    return rotary_frequencies(head_dim, theta) / rotary_frequencies(head_dim, theta, scaling)


def _llama3(frequencies: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, context = (_positive(scaling, name, "llama3") for name in names)
    if low >= high:
        raise ValueError(f"low_freq_factor {low} must be below high_freq_factor {high}")
    turns = context / (2 * math.pi / frequencies)  # full turns within the original context
    fast = (turns - low) / (high - low)  # 0: as slow as the slow ones, 1: as fast as the fast ones
    between = (1 - fast) * frequencies / factor + fast * frequencies
    return torch.where(turns < low, frequencies / factor, torch.where(turns > high, frequencies, between))


def _yarn(frequencies: torch.Tensor, theta: float, scaling: dict[str, Any]) -> torch.Tensor:
    """As `_llama3`, with a passage that is straight in the number of the pair (Peng et al. 2023, section 3.2)."""
    scaling = {"beta_fast": 32, "beta_slow": 1} | {k: v for k, v in scaling.items() if v is not None}
    names = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
    factor, context, fast, slow = (_positive(scaling, name, "yarn") for name in names)
    pairs = len(frequencies)
    # The pair that makes so many turns in the original context: theta^(-i / pairs) * context = turns * 2 pi.
    ends = [pairs * math.log(context / (turns * 2 * math.pi)) / math.log(theta) for turns in (fast, slow)]
    if scaling.get("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    first, last = max(ends[0], 0), min(ends[1], 2 * pairs - 1)
    slowed = ((torch.arange(pairs) - first) / (last - first or 0.001)).clamp(0, 1)
    return frequencies / factor * slowed + frequencies * (1 - slowed)


def rotary_amplitude(scaling: dict[str, Any] | None) -> float:
    """By what cosines and sines are multiplied: 1, and for "yarn" a little more.

    Over a longer context softmax spreads its weight over more tokens. Longer queries and keys make up for it (Peng et al.
    2023, section 3.4).
    """
    if scaling is None or scaling.get("rope_type", scaling.get("type")) != "yarn":
        return 1.0
    if scaling.get("attention_factor") is not None:
        return _positive(scaling, "attention_factor", "yarn")
    factor, share, all_shares = (scaling.get(k) for k in ("factor", "mscale", "mscale_all_dim"))

    def amplitude(share: float) -> float:
        return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0

    return amplitude(share) / amplitude(all_shares) if share and all_shares else amplitude(1.0)


def _positive(scaling: dict[str, Any], name: str, kind: str) -> float:
    value = scaling.get(name)
    if type(value) not in (int, float) or not 1e-6 <= value <= 1e9:
        raise ValueError(f"rotary scaling {kind!r} needs {name} above 0, got {quoted(value)} (1e-6 to 1e9)")
    return value


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
    """Turn each pair of numbers by its token's angle.

    Args:
        x: queries or keys [N, heads, head_dim].
        cos, sin: [N, head_dim / 2], the rows of `rotary_tables` at the tokens' positions.

    Returns:
        [N, heads, head_dim] in the number format of `x`.

    Which numbers form a pair? In the paper neighbours do: 0 and 1, 2 and 3. Here, as in Hugging Face's
    files, number i of the first half goes with number i of the second half. Both are the same up to the
    order of the numbers in a head (see `apply_rotary_interleaved`), and scores do not depend on order; but
    the weights in a file are made for one of the two.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # the same angles for every head
    # The usual rotation of a point (a, b): (a cos - b sin, b cos + a sin).
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def apply_rotary_interleaved(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The paper's own layout: numbers 2i and 2i+1 form a pair. Shapes as in `apply_rotary`."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)


def to_half_split(head_dim: int) -> torch.Tensor:
    """The order that turns the paper's layout into Hugging Face's: 0, 2, 4, ..., 1, 3, 5, ...

    `x_half_split = x_interleaved[..., to_half_split(head_dim)]`
    """
    return torch.cat((torch.arange(0, head_dim, 2), torch.arange(1, head_dim, 2)))
