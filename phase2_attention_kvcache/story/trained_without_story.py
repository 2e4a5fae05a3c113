"""The chapter on what a choice is worth: small models that were trained without it."""

from statistics import mean

from matplotlib.figure import Figure

from labkit.figures import BLUE, GREY, ORANGE, new_figure
from labkit.lab import Lab
from phase2_attention_kvcache.story.trained_without import Trained, read_trained


def tell_trained_without(lab: Lab) -> None:
    lab.title("What each choice contributes")
    with_all, *others = read_trained().values()
    lab.say(f"""To see what a choice is worth, the same small model was trained with it and without it: two layers of width 128,
        {with_all.parameters:,} parameters with all of Qwen3's choices, and half a million tokens of stories. Each was trained
        {len(with_all.more)} times, with different seeds. The runs differ by chance, and the effect of a choice must be larger than that.
        The measure is the perplexity of unseen text: the number of equally probable tokens with the same uncertainty.""")
    for claim, name, said in (
        (
            "rope-learns-faster",
            "a learned table of positions",
            "a learned table in place of rotary positions",
        ),
        ("gates-win", "GELU", "GELU in place of SwiGLU, with as many parameters"),
    ):
        (more,) = (t.more for t in others if t.name == name)
        lab.predict(
            claim,
            f"{said}: in how many of {len(more)} runs is the model worse than with all choices?",
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
    lab.record(perplexities={t.name: t.perplexities for t in (with_all, *others)})
    lab.figure(draw_trained(others), "trained_without")
    tell_published(lab)


def tell_published(lab: Lab) -> None:
    """Published results on larger models."""
    lab.table(
        "Published ablations of single choices (T5: without it, with it)",
        ["choice", "without", "with", "what was compared"],
        [
            ("gates in the MLP", "1.679 (GELU)", "1.636 (SwiGLU)", "base, log-perplexity, lower is better"),
            ("grouped heads", "47.2, 1.51 s", "47.1, 0.28 s", "XXL, mean score, time of an answer; 8 groups"),
            ("one KV head for all", "47.2, 1.51 s", "46.6, 0.24 s", "the same"),
        ],
        note="Not measured here. Shazeer 2020 (GLU Variants), table 1, after 524,288 steps; Ainslie et al. 2023 (GQA), table 1. "
        "Groups keep the quality and nearly all of the speed: most families have had them since.",
    )


def draw_trained(others: list[Trained]) -> Figure:
    """For each recipe how many percent higher its perplexity is, a dot for each seed."""
    fig, (axis,) = new_figure(
        "Without rotary positions a small model loses most",
        "Perplexity of unseen text, compared with all choices and the same seed. Dots: seeds. Line: their mean.",
        size=(9.0, 4.4),
    )
    for y, trained in enumerate(reversed(others)):
        axis.scatter(trained.more, [y] * len(trained.more), color=BLUE, s=40, alpha=0.7, zorder=3)
        axis.plot([mean(trained.more)] * 2, [y - 0.28, y + 0.28], color=ORANGE, zorder=2)
    axis.axvline(0, color=GREY, linewidth=1.2)
    axis.set_yticks(range(len(others)), [trained.name for trained in reversed(others)])
    axis.set_xlabel("change of perplexity, %; to the right: worse than with all choices")
    return fig
