"""The figures of tensor_parallel.py."""

from collections.abc import Mapping, Sequence
from itertools import product

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.figures import COLORS, INK, MUTED, new_figure
from phase2_attention_kvcache.model import ModelConfig
from phase4_scheduler.simulator import find_interconnect
from phase5_real_gpu.parallel import Place


def draw_ranks(config: ModelConfig, t: int, p: int) -> Figure:
    """A box for each part of the model, in the colour of the rank that holds it."""
    fig, [ax] = new_figure(
        f"{t * p} ranks: {p} stages share the layers, {t} ranks share each layer",
        f"{config.name}: {config.num_layers} layers of {config.num_heads} heads. Left attention, right the MLP. Colour: the rank that holds it",
        size=(7.2, 6),
    )
    width = 12.0
    parts = ["token table", *(f"layer {i}" for i in range(config.num_layers)), "output head"]
    stages = [0, *(s for s in range(p) for _ in Place(s * t, t, p).layers(config.num_layers)), p - 1]
    for row, (name, stage) in enumerate(zip(parts, stages, strict=True)):
        cut = ["tokens"] if not name.startswith("layer") else ["heads", "inner numbers"]
        for half, what in enumerate(cut):
            span = width / len(cut)
            for tensor_rank in range(t):
                rank = stage * t + tensor_rank
                x, w = half * span + tensor_rank * (span - 0.3) / t, (span - 0.3) / t
                color = COLORS[rank % len(COLORS)]
                box = Rectangle((x, row + 0.1), w, 0.8, facecolor=color, alpha=0.75, edgecolor="white")
                ax.add_patch(box)
                share = {"heads": config.num_heads, "tokens": config.vocab_size}.get(what, config.d_ff) // t
                label = f"rank {rank}:\n{share:,} {what}"
                ax.text(x + w / 2, row + 0.5, label, ha="center", va="center", fontsize=9, color=INK)
    ax.set(xlim=(0, width), ylim=(len(parts), 0), xticks=[], yticks=[i + 0.5 for i in range(len(parts))])
    ax.set_yticklabels(parts)
    ax.grid(visible=False)
    return fig


def draw_curve(
    devices: Sequence[int],
    curves: Mapping[int, Mapping[str, Sequence[float]]],
    published: Mapping[int, float],
) -> Figure:
    """Tokens per second against GPUs, a line for each interconnect; a panel for each number of requests."""
    (first, fast), (second, slow), *_ = curves[1].items()
    best = [devices[max(range(len(devices)), key=values.__getitem__)] for values in (fast, slow)]
    fig, axes = new_figure(
        f"One request is fastest on {best[0]} GPUs over {find_interconnect(first).title}, "
        f"on {best[1]} over {find_interconnect(second).title}",
        "Llama-2-7B, 16 bit, A100, decode at 512 tokens. Computed from recorded all-reduces; hollow: all-reduce computed, not recorded",
        panels=len(curves),
    )  # fmt: skip
    for ax, (users, curve) in zip(axes, curves.items(), strict=True):
        for (wire, values), colour in zip(curve.items(), COLORS):
            joined = find_interconnect(wire)
            ax.plot(devices, values, color=colour, label=joined.title)
            for n, value in zip(devices, values, strict=True):
                hollow = n in joined.computed
                ax.plot([n], [value], "o", color=colour, markerfacecolor="white" if hollow else colour)
        if users == 1:
            ax.plot(*zip(*published.items()), "x", color=INK, label="gpt-fast, published (NVLink)")
        ax.set_title(f"{users} request{'s' if users > 1 else ''}", color=MUTED)
        ax.set_xscale("log", base=2)
        ax.set_xticks(devices, [str(n) for n in devices])
        ax.set(xlabel="GPUs", ylabel="tokens per second per request", ylim=(0, None))
        ax.legend()
    return fig


def draw_bubble(num_stages: int, micro_batches: Sequence[int]) -> Figure:
    """Who works when, for several numbers of micro-batches of the same work.

    Source: Huang et al., "GPipe" (2019), section 2.
    """
    shares = [(num_stages - 1) / (m + num_stages - 1) for m in micro_batches]
    fig, axes = new_figure(
        "The bubble shrinks with micro-batches: " + ", ".join(f"{share:.0%}" for share in shares) + " idle",
        f"{num_stages} stages; the same work in {', '.join(map(str, micro_batches))} micro-batches. White: idle",
        panels=len(micro_batches), size=(7.2, 7.2),
    )  # fmt: skip
    for ax, m in zip(axes, micro_batches, strict=True):
        for stage, batch in product(range(num_stages), range(m)):
            # A stage begins with it when the stage before has handed it on, and the one before it is done.
            when, shade = ((stage + batch) / m, 1 / m), 0.35 + 0.6 * (batch + 1) / m
            ax.broken_barh(
                [when], (stage + 0.1, 0.8), facecolor=COLORS[stage], alpha=shade, edgecolor="white"
            )
        ax.set(
            title=f"{m} micro-batch{'es' if m > 1 else ''}", xlabel="time (1: all work of a stage)", xlim=(0, num_stages),
            ylim=(num_stages, 0), yticks=[s + 0.5 for s in range(num_stages)],
        )  # fmt: skip
        ax.set_yticklabels([f"stage {s}" for s in range(num_stages)])
        ax.grid(visible=False)
    return fig
