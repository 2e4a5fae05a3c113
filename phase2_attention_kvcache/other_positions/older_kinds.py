"""Positions as earlier models have them: a table of sines, a learned table, and the rotation in the paper's own layout.

Sources: Vaswani et al. 2017, section 3.5; Su et al. 2021 (RoPE), section 3.4.
"""

import torch

from phase2_attention_kvcache.model.positions import rotary_frequencies


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
