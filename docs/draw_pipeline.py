"""Draw the picture at the top of the README: one prompt on its way through the whole course.

    python docs/draw_pipeline.py

Everything in it is real: the tokens, the vectors, the attention, the keys and the scores are what the
embedded model computes for this prompt.
"""

from pathlib import Path
from typing import Any

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
COLOURS = {"Tokens": BLUE, "Vectors": BLUE, "Attention": ORANGE, "KV cache": GREEN, "Scores": PURPLE}


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
    shown = lambda i: tok.decode([i]).replace(" ", "·")  # noqa: E731
    return dict(
        ids=ids,
        tokens=[shown(i) for i in ids],
        vectors=model.token_table.weight[ids] + model.position_table.weight[positions],
        attention=cache.weights.mean(0),
        keys=torch.stack([keys.flatten(1).norm(dim=1) for keys in cache.keys.values()]),
        layers=model.config.num_layers,
        best=[(shown(i), p) for i, p in zip(best.indices.tolist(), best.values.tolist())],
    )


def stage(fig: Figure, left: float, width: float, phase: int, title: str, text: str) -> Axes:
    """One stage: a coloured heading, a place to draw in, a line of explanation."""
    fig.text(left, 0.875, f"PHASE {phase}", color=COLOURS.get(title, INK), fontsize=9, fontweight="bold")
    fig.text(left, 0.825, title, color=INK, fontsize=12, fontweight="bold")
    fig.text(left, 0.255, text, color=MUTED, fontsize=8.5, va="top", linespacing=1.45)
    ax = fig.add_axes((left, 0.32, width, 0.45))
    ax.grid(False)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    return ax


def arrow(fig: Figure, start: tuple[float, float], end: tuple[float, float], colour: str = GREY) -> None:
    look = dict(arrowstyle="-|>", mutation_scale=16, color=colour, linewidth=1.8)
    fig.add_artist(FancyArrowPatch(start, end, transform=fig.transFigure, **look))


def box(ax: Axes, x: float, y: float, width: float, height: float = 0.72, **look: Any) -> None:
    """A box with round corners around (x, y)."""
    round_corners = "round,pad=0,rounding_size=0.12"
    ax.add_patch(
        FancyBboxPatch((x - width / 2, y - height / 2), width, height, boxstyle=round_corners, **look)
    )


def chip(ax: Axes, x: float, y: float, text: str, colour: str, width: float, height: float = 0.72) -> None:
    box(ax, x, y, width, height, facecolor=colour, alpha=0.16, edgecolor=colour, linewidth=1.1)
    ax.text(x, y, text, ha="center", va="center", fontsize=9.5)


def draw(d: dict) -> Figure:
    """The whole picture."""
    n = len(d["ids"])
    fig = plt.figure(figsize=(13.6, 5.0))
    fig.text(0.015, 0.945, "From a prompt to the next word, and round again", fontsize=15, fontweight="bold")

    ax = stage(fig, 0.015, 0.135, 1, "Tokens", "text is cut into known pieces;\neach has a number")
    ax.set(xlim=(0, 2.2), ylim=(n - 0.5, -0.5))
    for row, (token, i) in enumerate(zip(d["tokens"], d["ids"], strict=True)):
        chip(ax, 0.62, row, token, BLUE, width=1.16)
        ax.text(1.5, row, f"{i}", va="center", fontsize=9.5, color=MUTED)

    text = "each number picks a row of a table;\nits place adds another"
    ax = stage(fig, 0.195, 0.135, 1, "Vectors", text)
    # Each column on its own scale, or the few largest numbers would hide all others.
    shown = d["vectors"][:, :40]
    ax.imshow((shown - shown.mean(0)) / shown.std(0), aspect="auto", cmap="RdBu_r", vmin=-2.2, vmax=2.2)

    text = f"in {d['layers']} layers each token looks at\nthose before it (darker: more weight)"
    ax = stage(fig, 0.375, 0.15, 2, "Attention", text)
    for depth in range(d["layers"] - 1, 0, -1):  # the layers behind
        place = (0.375 + 0.006 * depth, 0.32 + 0.016 * depth, 0.125, 0.386)
        behind = fig.add_axes(place, zorder=-depth, xticks=[], yticks=[], facecolor=PAPER)
        behind.grid(False)
        behind.spines[:].set(visible=True, color=GREY, linewidth=0.8)
    ax.set_position((0.375, 0.32, 0.125, 0.386))
    ax.imshow(d["attention"], aspect="auto", cmap="Oranges", vmin=0)
    ax.spines[:].set(visible=True, color=GREY, linewidth=0.8)

    text = "what was computed is kept:\na row a layer, a column a token"
    ax = stage(fig, 0.565, 0.12, 2, "KV cache", text)
    room = n + 4
    ax.set(xlim=(-0.5, room - 0.5), ylim=(d["layers"] - 0.5, -0.5))
    strength = d["keys"] / d["keys"].max()
    for layer in range(d["layers"]):
        for token in range(n):
            alpha = 0.35 + 0.6 * float(strength[layer, token])
            box(ax, token, layer, 0.8, linewidth=0.9, edgecolor=GREEN, facecolor=GREEN, alpha=alpha)
        for token in range(n, room):
            box(ax, token, layer, 0.8, linewidth=0.9, edgecolor=GREY, facecolor=PAPER, alpha=0.5)

    ax = stage(fig, 0.73, 0.11, 2, "Scores", "every token of the vocabulary\ngets a probability")
    names, values = zip(*d["best"])
    ax.barh(range(5), values, color=PURPLE, alpha=0.75, height=0.62)
    ax.set(ylim=(4.6, -0.6), xlim=(0, max(values) * 1.6))
    for row, (name, p) in enumerate(d["best"]):
        ax.text(p + max(values) * 0.04, row, f"{name}  {100 * p:.0f}%", va="center", fontsize=9.5)

    ax = stage(fig, 0.895, 0.09, 2, "Next token", "sampled, shown,\nand fed back")
    ax.set(xlim=(0, 1), ylim=(0, 1))
    chip(ax, 0.5, 0.55, names[0], INK, width=0.94, height=0.2)

    for x in (0.158, 0.338, 0.536, 0.697, 0.862):
        arrow(fig, (x, 0.54), (x + 0.026, 0.54))
    back = plt.Line2D([0.94, 0.94, 0.262], [0.155, 0.105, 0.105], color=INK, linewidth=1.8)
    fig.add_artist(back).set_transform(fig.transFigure)
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
