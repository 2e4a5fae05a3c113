"""The chapter on what a choice is worth: small models that were trained without it, from `trained_without.json`.

The model was the course's own: Qwen3's choices at width 128, 2 layers, 4 query and 2 KV heads of 32 numbers, an MLP of 320, a
context of 128, a vocabulary of 1,024 tokens. Each recipe replaces one choice (GELU: an MLP of 480, so as many parameters; all of
2019: with biases as well). It was trained for 240 steps of 16 windows of 128 tokens, by Muon at a rate of 0.01 and AdamW at 0.005 on
the schedule of `tales` (see its model card). The same seed gives all recipes the same windows in the same order. `valid_loss` is the
mean over 512 windows of unseen text, in nats per token.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

from labkit.figures import BLUE, GREY, ORANGE, new_figure
from labkit.lab import Lab

RESULT = Path(__file__).with_name("trained_without.json")
ALL = "all choices"


@dataclass(frozen=True)
class Trained:
    """Models of one recipe, one for each seed.

    Attributes:
        perplexities: of a token of the validation text, by seed.
        more: how much higher they are than with all choices and the same seed, in percent.
    """

    name: str
    parameters: int
    perplexities: list[float]
    more: list[float]


def read_trained() -> dict[str, Trained]:
    """All recipes, by their names; first the one with all choices."""
    runs: dict[str, list[dict]] = {}
    for one in json.loads(RESULT.read_text(encoding="utf-8"))["runs"]:  # in the order of their seeds
        runs.setdefault(one["recipe"], []).append(one)
    perplexities = {name: [math.exp(one["valid_loss"]) for one in of_name] for name, of_name in runs.items()}
    return {
        name: Trained(
            name,
            of_name[0]["parameters"],
            perplexities[name],
            [100 * (p / full - 1) for p, full in zip(perplexities[name], perplexities[ALL], strict=True)],
        )
        for name, of_name in runs.items()
    }


def tell_trained_without(lab: Lab) -> None:
    lab.title("What each choice contributes")
    with_all, *others = read_trained().values()
    lab.say(f"""To see what a choice is worth, the same small model was trained with it and without it: two layers of width 128,
        {with_all.parameters:,} parameters with all of Qwen3's choices, and half a million tokens of stories. Each was trained
        {len(with_all.more)} times, with different seeds. The runs differ by chance, and the effect of a choice must be larger than that.
        The measure is the perplexity of unseen text: the number of equally probable tokens with the same uncertainty.""")
    for claim, name, choice in (
        ("rope-learns-faster", "a learned table of positions", "rotary positions"),
        ("gates-win", "GELU", "SwiGLU, with as many parameters"),
    ):
        (more,) = (t.more for t in others if t.name == name)
        lab.predict(
            claim,
            f"{name} in place of {choice}: in how many of {len(more)} runs is the model worse than with all choices?",
            predicted=len(more),
            measured=sum(m > 0 for m in more),
            kind="timing",  # figures of one machine and a few seeds: reported, no failure
            note=f"Its perplexity is {' / '.join(f'{m:+.1f}%' for m in more)} in each run.",
        )
    lab.table(
        f"In the place of a choice (perplexity with all: {mean(with_all.perplexities):.1f})",
        ["in its place", "parameters", "perplexity", "more, in each run"],
        [
            [t.name, t.parameters, f"{mean(t.perplexities):.1f}", " ".join(f"{m:+.1f}%" for m in t.more)]
            for t in others
        ],
        note="More: than the model with all choices with the same seed. LayerNorm norms queries and keys, too. All of "
        "2019 has biases as well. One learning rate for all.",
    )
    lab.figure(draw_trained(others), "trained_without")


def draw_trained(others: list[Trained]) -> Figure:
    """For each recipe how many percent higher its perplexity is, a dot for each seed."""
    fig, (axis,) = new_figure(
        "A learned table of positions costs a small model most",
        "Perplexity of unseen text, compared with all choices and the same seed. Dots: seeds. Line: their mean.",
        size=(7.2, 4.4),
    )
    for y, trained in enumerate(reversed(others)):
        axis.scatter(trained.more, [y] * len(trained.more), color=BLUE, s=40, alpha=0.7, zorder=3)
        axis.plot([mean(trained.more)] * 2, [y - 0.28, y + 0.28], color=ORANGE, zorder=2)
    axis.axvline(0, color=GREY, linewidth=1.2)
    axis.set_yticks(range(len(others)), [trained.name for trained in reversed(others)])
    axis.set_xlabel("change of perplexity, % (right: worse)")
    return fig
