"""The common style of all figures: the title states the finding, axes have units, a colour has one meaning."""

from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")  # write files; a course script never opens a window
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, GRID = "#1f2933", "#66727f", "#e3e7eb"
BLUE, ORANGE, GREEN, RED, PURPLE, TEAL, YELLOW, GREY = COLORS = (
    "#2f6fb0", "#e07b39", "#3c9d6b", "#c8453b", "#7d5ba6", "#2a9d9d", "#d9a520", "#9aa5b1",
)  # fmt: skip
"""Distinct for colour-blind readers in this order: use the first colours first."""

STYLE = {
    "figure.dpi": 110,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "lines.markersize": 5,
    "text.parse_math": False,  # a $ in a prompt is a dollar
    "axes.prop_cycle": matplotlib.cycler(color=COLORS),
}
plt.rcParams.update(STYLE)


def new_figure(
    finding: str,
    subtitle: str = "",
    panels: int = 1,
    size: tuple[float, float] | None = None,
    width_ratios: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Make a figure with `panels` axes side by side.

    Args:
        finding: the title, a sentence that states what the figure shows.
        subtitle: the measurement and the machine, in smaller letters.
        size: width and height in inches.
    """
    size = size or (5.2 * panels + 1.2 if panels > 1 else 7.5, 4.6)
    fig, axes = plt.subplots(
        1, panels, figsize=size, squeeze=False, layout="constrained", width_ratios=width_ratios
    )
    fig.get_layout_engine().set(rect=(0, 0, 1, 1 - (0.78 if subtitle else 0.5) / size[1]))
    lines = [fig.text(0.012, 1 - 0.12 / size[1], finding, fontsize=13, fontweight="bold", va="top")]
    if subtitle:
        lines.append(fig.text(0.012, 1 - 0.46 / size[1], subtitle, fontsize=9.5, color=MUTED, va="top"))
    for line in lines:  # the name of a processor may be long
        share = line.get_window_extent().x1 / fig.bbox.width
        line.set_fontsize(line.get_fontsize() * min(1, 0.99 / share))
    return fig, list(axes[0])


def plain_numbers(ax: Axes, axes: str = "xy") -> None:
    """Write 10, 100, 1,000 on a logarithmic axis instead of powers of ten."""
    for axis in (getattr(ax, f"{name}axis") for name in axes):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        axis.set_minor_formatter("")
