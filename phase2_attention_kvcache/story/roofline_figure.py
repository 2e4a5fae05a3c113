"""The figure of the roofline."""

from __future__ import annotations

import math

from labkit.figures import BLUE, GREY, INK, ORANGE, new_figure, plain_numbers
from phase2_attention_kvcache.model.roofline import Ceilings


def draw_roofline(ceilings: Ceilings, steps: list, name: str, device: str, dtype: str):
    fig, (ax,) = new_figure(
        "Decode runs along the memory slope, prefill nears the arithmetic roof",
        f"{name}, {device}, {dtype}; a number is the tokens computed in the step",
        size=(8.4, 5.2),
    )
    low, high = steps[0][1].intensity / 2, max(steps[-1][1].intensity, ceilings.ridge) * 2
    ax.plot(
        [low, ceilings.ridge, high],
        [low * ceilings.bandwidth / 1e9, ceilings.rate / 1e9, ceilings.rate / 1e9],
        color=INK,
        linewidth=2.2,
    )
    ax.axvline(ceilings.ridge, color=GREY, linestyle=":", linewidth=1.2)
    for n, work, _, seconds in steps:
        y = work.operations / seconds / 1e9
        colour = BLUE if work.intensity < ceilings.ridge else ORANGE
        ax.plot(work.intensity, y, "o", color=colour, markersize=8)
        ax.annotate(f"{n:,}", (work.intensity, y), xytext=(0, -14), textcoords="offset points", ha="center")
    ax.set(xlabel="operations a byte", ylabel="GFLOP/s", xscale="log", yscale="log", xlim=(low, high))
    ax.set_ylim(bottom=ax.get_ylim()[0] / 1.5)  # room for the number below the lowest point
    plain_numbers(ax)
    middle = (low * ceilings.ridge) ** 0.5
    ax.text(
        middle / 1.15,
        middle * ceilings.bandwidth / 1e9,
        f"memory: {ceilings.bandwidth / 1e9:.0f} GB/s",
        color=BLUE,
        ha="center",
        va="bottom",
        rotation=math.degrees(math.atan(ceilings.bandwidth / 1e9)),
        rotation_mode="anchor",
        transform_rotates_text=True,
    )
    ax.annotate(
        f"arithmetic: {ceilings.rate / 1e9:,.0f} GFLOP/s",
        (high, ceilings.rate / 1e9),
        xytext=(-4, 6),
        textcoords="offset points",
        ha="right",
        color=ORANGE,
    )
    return fig
