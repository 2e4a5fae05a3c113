"""The three kinds of positions side by side: their scores as a function of distance, and two figures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file

from labkit.figures import BLUE, GREEN, GREY, MUTED, ORANGE, new_figure, plain_numbers
from labkit.models import find_model
from phase2_attention_kvcache.model.positions import (
    apply_rotary,
    look_up,
    rotary_frequencies,
    rotary_tables,
    sinusoidal_table,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD_DIM = 64
MOST_DISTANCE = 64
LLAMA31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""`rope_scaling` of Llama 3.1 8B, with theta 500,000 and heads of 128 numbers."""


def learned_table() -> torch.Tensor:
    """The trained position table [1024, 256] of the course's own model `tales`."""
    weights = load_file(find_model("tales") / "model.safetensors")
    return next(w for name, w in weights.items() if name.endswith("wpe.weight")).double()


def compare_kinds(seed: int, num_places: int) -> dict[str, torch.Tensor]:
    """Scores of one query content and one key content, moved through the context.

    The same two contents and the same two projections W_Q and W_K serve all three kinds. Position vectors
    are made as long as the contents, so that neither drowns the other.

    Returns:
        For each kind [num_places, MOST_DISTANCE + 1]: row = where the query stands, column = how far back
        the key is.
    """
    table = learned_table()
    num_positions, d_model = table.shape
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, d_model, dtype=torch.float64, generator=generator)
    w_q, w_k = torch.randn(2, d_model, HEAD_DIM, dtype=torch.float64, generator=generator) / d_model**0.5

    places = torch.linspace(MOST_DISTANCE, num_positions - 1, num_places).long()
    m = places[:, None].expand(-1, MOST_DISTANCE + 1).flatten()  # query positions
    n = (places[:, None] - torch.arange(MOST_DISTANCE + 1)).flatten()  # key positions

    def added(table: torch.Tensor) -> torch.Tensor:
        table = table / table.norm(dim=-1).mean() * d_model**0.5  # as long as the contents
        q = (x + look_up(table, m)) @ w_q
        k = (y + look_up(table, n)) @ w_k
        return (q * k).sum(-1)

    def turned() -> torch.Tensor:
        cos, sin = rotary_tables(num_positions, rotary_frequencies(HEAD_DIM).double(), torch.float64)
        q = apply_rotary((x @ w_q).expand(len(m), 1, -1), cos[m], sin[m])
        k = apply_rotary((y @ w_k).expand(len(n), 1, -1), cos[n], sin[n])
        return (q * k).sum((-2, -1))

    scores = {
        "learned": added(table),
        "sinusoidal": added(sinusoidal_table(num_positions, d_model).double()),
        "rotary": turned(),
    }
    return {name: (s / HEAD_DIM**0.5).view(num_places, -1) for name, s in scores.items()}


def draw_scores(scores: dict[str, torch.Tensor]) -> Figure:
    """Score against distance for the three kinds. `scores` comes from `compare_kinds`."""
    fig, axes = new_figure(
        "Only rotary scores depend on the distance alone",
        "The same two contents at many places of a context of 1,024. Line: mean. Band: lowest to highest.",
        panels=len(scores),
        size=(13, 4.4),
    )
    for axis, (name, s), color in zip(axes, scores.items(), (ORANGE, GREEN, BLUE), strict=True):
        distance = range(s.shape[1])
        axis.fill_between(distance, s.min(0).values, s.max(0).values, color=color, alpha=0.25, linewidth=0)
        axis.plot(distance, s.mean(0), color=color)
        axis.set_title(name, fontsize=11)
        axis.set_xlabel("distance of key and query, tokens")
    axes[0].set_ylabel("score before softmax")
    return fig


def draw_speeds() -> Figure:
    """How many tokens each pair needs for a full turn, for three settings."""
    plain = rotary_frequencies(128, 500_000.0)
    settings = [
        ("theta 10,000 (Llama 2)", GREY, rotary_frequencies(128)),
        ("theta 500,000 (Llama 3)", BLUE, plain),
        (
            "theta 500,000 and slow pairs slowed (Llama 3.1)",
            ORANGE,
            rotary_frequencies(128, 500_000.0, LLAMA31),
        ),
    ]
    unfinished = int((2 * math.pi / plain > 8192).sum())
    fig, (axis,) = new_figure(
        f"{unfinished} of Llama 3's 64 pairs never finish a turn within 8,192 tokens",
        "Those pairs meet new angles in a longer context. Llama 3.1 slows them by 8, and a few more by less.",
        size=(8.5, 5.0),
    )
    for name, color, frequencies in settings:
        axis.plot(2 * math.pi / frequencies, color=color, label=name)
    for context in (8192, 131072):
        axis.axhline(context, color=MUTED, linewidth=1, linestyle="--")
        axis.text(0, context * 1.15, f"context {context:,}", color=MUTED, fontsize=9)
    axis.set_yscale("log")
    plain_numbers(axis, "y")
    axis.set_xlabel("pair of numbers in a head of 128")
    axis.set_ylabel("tokens for a full turn")
    axis.legend(loc="lower right", frameon=False)
    return fig
