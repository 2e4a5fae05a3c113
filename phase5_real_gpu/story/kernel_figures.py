"""The figures of kernel_benchmark.py: every kernel under the roofline."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from labkit.figures import BLUE, GREY, INK, MUTED, ORANGE, new_figure, plain_numbers
from phase2_attention_kvcache.measuring.roofline import Ceilings
from phase5_real_gpu.measuring.measurements import Measurement

OURS, EARLIER, OTHERS = BLUE, GREY, ORANGE


def colour_of(name: str) -> str:
    if name.startswith(("gather-", "vectorised-", "python-")):
        return EARLIER
    if name.startswith(("sdpa-", "flashinfer-", "torch-")):
        return OTHERS
    return OURS


def draw_kernels(results: Sequence[Measurement], ceilings: Ceilings, machine: str, dtype: str):
    """Left: where each kernel stands under the roofline. Right: how close each comes to its own limit.

    Returns None if none of the course's own has a figure.
    """
    kernels = [
        r for r in results if r.details["intensity"] > 0
    ]  # storing keys computes nothing: no place on a roofline
    ours = [r for r in kernels if colour_of(r.name) == OURS]
    if not ours:
        return None
    shares = [r.share_of_limit for r in ours]
    cases = len({r.details["case"] for r in results})
    fig, (left, right) = new_figure(
        f"The engine's kernels reach {100 * min(shares):.0f} to {100 * max(shares):.0f}% of this machine's limit",
        f"{machine}, {dtype}. Blue: the engine's kernels. Grey: simpler implementations. Orange: torch's or FlashInfer's.",
        panels=2,
        size=(13.2, max(4.8, 0.24 * len(results) + 0.3 * cases + 1.7)),
        width_ratios=(1, 1.05),
    )
    numbers = {r.name: i for i, r in enumerate(results, 1)}
    _roofline(left, kernels, numbers, ceilings)
    _shares(right, results, numbers)
    return fig


def _roofline(
    ax: Axes, kernels: Sequence[Measurement], numbers: Mapping[str, int], ceilings: Ceilings
) -> None:
    low = min(r.details["intensity"] for r in kernels) / 4
    high = max(ceilings.ridge, *(r.details["intensity"] for r in kernels)) * 3
    gflops = [r.details["tflop_s"] * 1000 for r in kernels]
    roof = ceilings.rate / 1e9
    ax.plot(
        [low, ceilings.ridge, high], [low * ceilings.bandwidth / 1e9, roof, roof], color=INK, linewidth=2.2
    )
    bottom = min(*gflops, low * ceilings.bandwidth / 1e9) / 2
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, roof * 4))
    ax.set(xlabel="FLOP per byte", ylabel="GFLOP/s")
    plain_numbers(ax)
    # Many kernels share an intensity, and some a speed: their numbers stand in a row beside them.
    tall = math.log(4 * roof / bottom)
    groups: list[list[tuple[Measurement, float]]] = []
    for r, speed in sorted(
        zip(kernels, gflops), key=lambda pair: (round(math.log(pair[0].details["intensity"]), 1), -pair[1])
    ):
        ax.plot(r.details["intensity"], speed, "o", color=colour_of(r.name), markersize=7, clip_on=False)
        first, top = groups[-1][0] if groups else (r, math.inf)
        if (
            abs(math.log(r.details["intensity"] / first.details["intensity"])) < 0.15
            and math.log(top / speed) / tall < 0.045
        ):
            groups[-1].append((r, speed))
        else:
            groups.append([(r, speed)])
    for group in groups:
        height = math.exp(sum(math.log(speed) for _, speed in group) / len(group))
        for place, (r, _) in enumerate(group):
            ax.annotate(
                str(numbers[r.name]), (group[0][0].details["intensity"], height), xytext=(9 + 16 * place, 0),
                textcoords="offset points", color=colour_of(r.name), fontsize=9, fontweight="bold",
                va="center_baseline",
            )  # fmt: skip
    middle = (low * ceilings.ridge) ** 0.5
    ax.text(
        middle / 1.2, middle * ceilings.bandwidth / 1e9, f"memory: {ceilings.bandwidth / 1e9:,.0f} GB/s",
        color=MUTED, ha="center", va="bottom", rotation=math.degrees(math.atan(ceilings.bandwidth / 1e9)),
        rotation_mode="anchor", transform_rotates_text=True,
    )  # fmt: skip
    ax.annotate(
        f"arithmetic: {roof / 1000:,.0f} TFLOP/s" if roof >= 10_000 else f"arithmetic: {roof:,.0f} GFLOP/s", (high, roof), xytext=(-4, 6), textcoords="offset points",
        ha="right", color=MUTED,
    )  # fmt: skip


def _shares(ax: Axes, results: Sequence[Measurement], numbers: Mapping[str, int]) -> None:
    place, places, last = 0.0, [], ""
    for r in results:
        share, us = r.share_of_limit, r.value
        if r.details["case"] != last:
            place += 0.35 if last else 0.0
            ax.text(0.006, place, r.details["case"], va="center", fontsize=9, fontweight="bold", color=INK)
            place += 0.95
            last = r.details["case"]
        bar = min(share, 1.2)
        ax.barh(place, bar, 0.74, color=colour_of(r.name))
        time = f"{us:,.0f} µs" if us >= 10 else f"{us:.1f} µs"
        text = f"{share:.0%}  {time}" if share >= 0.01 else f"{share:.2%}  {time}"
        inside = share > 0.7
        ax.text(
            bar + (-0.012 if inside else 0.012), place, text, va="center", fontsize=8.5,
            ha="right" if inside else "left", color="white" if inside else INK,
        )  # fmt: skip
        places.append(place)
        place += 1
    ax.axvline(1, color=INK, linewidth=1.4, zorder=0)
    ax.set_yticks(places, [f"{r.details['kernel']}   {numbers[r.name]}" for r in results], fontsize=8.5)
    ax.set(xlim=(0, 1.3), xlabel="share of this machine's limit")
    ax.set_ylim(place - 0.4, -0.6)
    ax.grid(axis="y", visible=False)
