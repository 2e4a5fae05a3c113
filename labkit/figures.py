"""The common style of all figures: the title states the finding, axes have units, a colour has one meaning."""

import textwrap

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
    "font.size": 11,  # a phone shows a figure 375 pixels wide
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
    beside: bool = False,
    **grid: object,
) -> tuple[Figure, list[Axes]]:
    """Make a figure with `panels` axes one below the other: side by side, their letters are too small on a phone.

    Args:
        finding: the title, a sentence that states what the figure shows.
        subtitle: the measurement and the machine, in smaller letters.
        size: width and height in inches. beside: side by side after all. grid: of `plt.subplots`.
    """
    size = size or (7.2, 3.2 * panels + 1.4)
    rows, columns = (1, panels) if beside else (panels, 1)
    fig, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **grid)
    top = 0.12
    for text, style in (
        (finding, dict(fontsize=13, fontweight="bold")),
        (subtitle, dict(fontsize=10, color=MUTED)),
    ):
        line = fig.text(0.012, 1 - top / size[1], text, va="top", **style)
        share = line.get_window_extent().x1 / fig.bbox.width
        if share > 0.99:  # the name of a processor may be long
            line.set_text(textwrap.fill(text, int(0.97 * len(text) / share)))
        top += line.get_window_extent().height / fig.dpi + 0.1
    fig.get_layout_engine().set(rect=(0, 0, 1, 1 - top / size[1]))
    return fig, list(axes.flat)


def plain_numbers(ax: Axes, axes: str = "xy") -> None:
    """Write 10, 100, 1,000 on a logarithmic axis instead of powers of ten."""
    for axis in (getattr(ax, f"{name}axis") for name in axes):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        axis.set_minor_formatter("")
