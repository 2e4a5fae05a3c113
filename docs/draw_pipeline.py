"""Draw the picture at the top of the README: one prompt on its way through the whole course.

    python docs/draw_pipeline.py

Everything in it is real: the tokens, the vectors, the attention, the keys and the scores are what the
embedded model computes for this prompt.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from labkit.figures import BLUE, GREEN, GREY, INK, MUTED, ORANGE, PAPER, PURPLE, plt
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import ContiguousKVCache, Transformer
from phase2_attention_kvcache.model.attention import attention_weights

PROMPT = "Once upon a time there was a"
LAYER = 2  # whose attention is shown


class WatchedCache(ContiguousKVCache):
    """A KV cache that keeps what it saw, to be drawn."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.keys: dict[int, torch.Tensor] = {}
        self.weights: torch.Tensor | None = None

    def attend(self, layer, q, k, v):
        self.keys[layer] = k
        if layer == LAYER:
            self.weights = attention_weights(q, k)
        return super().attend(layer, q, k, v)


@torch.inference_mode()
def compute() -> dict:
    """Run the prompt through tokenizer and model; keep each intermediate result."""
    tok = BPETokenizer.from_file(find_model("tales") / "tokenizer.json")
    model = Transformer.from_pretrained("tales")
    ids = tok.encode(PROMPT)
    positions = torch.arange(len(ids))
    cache = WatchedCache(model.config)
    hidden = model(torch.tensor(ids), positions, cache)
    probabilities = model.logits(hidden[-1]).softmax(-1)
    best = probabilities.topk(5)
    return dict(
        ids=ids,
        tokens=[tok.decode([i]).replace(" ", "·") for i in ids],
        vectors=model.token_table.weight[ids] + model.position_table.weight[positions],
        attention=cache.weights.mean(0),
        keys=torch.stack(
            [cache.keys[layer].flatten(1).norm(dim=1) for layer in range(model.config.num_layers)]
        ),
        layers=model.config.num_layers,
        best=[
            (tok.decode([i]).replace(" ", "·"), p)
            for i, p in zip(best.indices.tolist(), best.values.tolist())
        ],
    )


def stage(fig: Figure, left: float, width: float, number: str, title: str, text: str, colour: str) -> Axes:
    """One stage: a coloured heading, a place to draw in, a line of explanation."""
    fig.text(left, 0.875, number, color=colour, fontsize=9, fontweight="bold")
    fig.text(left, 0.825, title, color=INK, fontsize=12, fontweight="bold")
    fig.text(left, 0.255, text, color=MUTED, fontsize=8.5, va="top", linespacing=1.45)
    ax = fig.add_axes((left, 0.32, width, 0.45))
    ax.grid(False)
    ax.set(xticks=[], yticks=[])
    for spine in ax.spines.values():
        spine.set_visible(False)
    return ax


def arrow(
    fig: Figure, start: tuple[float, float], end: tuple[float, float], colour: str = GREY, bend: float = 0.0
) -> None:
    fig.add_artist(
        FancyArrowPatch(
            start, end, transform=fig.transFigure, arrowstyle="-|>", mutation_scale=16, color=colour, linewidth=1.8,
            connectionstyle=f"arc3,rad={bend}",
        )
    )  # fmt: skip


def chip(
    ax: Axes, x: float, y: float, text: str, colour: str, width: float = 0.86, height: float = 0.72
) -> None:
    ax.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0,rounding_size=0.12",
            facecolor=colour, alpha=0.16, edgecolor=colour, linewidth=1.1,
        )
    )  # fmt: skip
    ax.text(x, y, text, ha="center", va="center", fontsize=9.5)


def draw(d: dict) -> Figure:
    """The whole picture."""
    n = len(d["ids"])
    fig = plt.figure(figsize=(13.6, 5.0))
    fig.text(0.015, 0.945, "From a prompt to the next word, and round again", fontsize=15, fontweight="bold")

    ax = stage(
        fig, 0.015, 0.135, "PHASE 1", "Tokens", "text is cut into known pieces;\neach has a number", BLUE
    )
    ax.set(xlim=(0, 2.2), ylim=(n - 0.5, -0.5))
    for row, (token, i) in enumerate(zip(d["tokens"], d["ids"], strict=True)):
        chip(ax, 0.62, row, token, BLUE, width=1.16)
        ax.text(1.5, row, f"{i}", va="center", fontsize=9.5, color=MUTED)

    ax = stage(
        fig,
        0.195,
        0.135,
        "PHASE 1",
        "Vectors",
        "each number picks a row of a table;\nits place adds another",
        BLUE,
    )
    # Each column on its own scale, or the few largest numbers would hide all others.
    shown = d["vectors"][:, :40]
    ax.imshow((shown - shown.mean(0)) / shown.std(0), aspect="auto", cmap="RdBu_r", vmin=-2.2, vmax=2.2)

    ax = stage(
        fig,
        0.375,
        0.15,
        "PHASE 2",
        f"Attention, {d['layers']} layers",
        "each token looks at those before it\n(darker: looks harder)",
        ORANGE,
    )
    for depth in range(d["layers"] - 1, 0, -1):  # the layers behind
        behind = fig.add_axes(
            (0.375 + 0.006 * depth, 0.32 + 0.016 * depth, 0.125, 0.45 - 0.064), zorder=-depth
        )
        behind.set(xticks=[], yticks=[], facecolor=PAPER)
        behind.grid(False)
        for spine in behind.spines.values():
            spine.set(visible=True, color=GREY, linewidth=0.8)
    ax.set_position((0.375, 0.32, 0.125, 0.386))
    ax.imshow(d["attention"], aspect="auto", cmap="Oranges", vmin=0)
    for spine in ax.spines.values():
        spine.set(visible=True, color=GREY, linewidth=0.8)

    ax = stage(
        fig,
        0.565,
        0.12,
        "PHASE 2",
        "KV cache",
        "what was computed is kept:\na row a layer, a column a token",
        GREEN,
    )
    room = n + 4
    ax.set(xlim=(-0.5, room - 0.5), ylim=(d["layers"] - 0.5, -0.5))
    strength = d["keys"] / d["keys"].max()
    for layer in range(d["layers"]):
        for token in range(room):
            filled = token < n
            ax.add_patch(
                FancyBboxPatch(
                    (token - 0.4, layer - 0.36), 0.8, 0.72, boxstyle="round,pad=0,rounding_size=0.1", linewidth=0.9,
                    edgecolor=GREEN if filled else GREY, facecolor=GREEN if filled else PAPER,
                    alpha=0.35 + 0.6 * float(strength[layer, token]) if filled else 0.5,
                )
            )  # fmt: skip

    ax = stage(
        fig, 0.73, 0.11, "PHASE 2", "Scores", "every token of the vocabulary\ngets a probability", PURPLE
    )
    names, values = zip(*d["best"])
    ax.barh(range(5), values, color=PURPLE, alpha=0.75, height=0.62)
    ax.set(ylim=(4.6, -0.6), xlim=(0, max(values) * 1.6))
    for row, (name, p) in enumerate(d["best"]):
        ax.text(p + max(values) * 0.04, row, f"{name}  {100 * p:.0f}%", va="center", fontsize=9.5)

    ax = stage(fig, 0.895, 0.09, "PHASE 2", "Next token", "sampled, shown,\nand fed back", INK)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    chip(ax, 0.5, 0.55, names[0], INK, width=0.94, height=0.2)

    for x in (0.158, 0.338, 0.536, 0.697, 0.862):
        arrow(fig, (x, 0.54), (x + 0.026, 0.54))
    fig.add_artist(
        plt.Line2D(
            [0.94, 0.94, 0.262], [0.155, 0.105, 0.105], transform=fig.transFigure, color=INK, linewidth=1.8
        )
    )
    arrow(fig, (0.262, 0.104), (0.262, 0.165), INK)
    fig.text(0.6, 0.117, "one token a step, until the end", ha="center", fontsize=9.5, color=INK)
    fig.text(
        0.015, 0.03,
        "Phase 3: the cache in blocks, like the pages of an operating system  ·  Phase 4: many users share each step  ·  "
        "Phase 5: the same on a GPU",
        fontsize=9, color=MUTED,
    )  # fmt: skip
    return fig


def main() -> None:
    out = Path(__file__).with_name("pipeline.png")
    draw(compute()).savefig(out)
    print(out)


if __name__ == "__main__":
    main()
