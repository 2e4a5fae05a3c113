"""The figures of the companion notebooks, each in one call: what is drawn stands in the cell, how it is drawn stands here."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from labkit.figures import BLUE, COLORS, ORANGE, new_figure, plain_numbers
from notebooks.widgets.shown import show_figure

Numbers = Sequence[float]


def show_lines(
    finding: str,
    subtitle: str,
    across: tuple[str, Numbers],
    up: str,
    lines: Mapping[str, Numbers],
    *,
    log: str = "",
    dots: bool = False,
    ticks: Numbers | None = None,
    mark: float | None = None,
) -> None:
    """One or more lines over the same places.

    Args:
        finding, subtitle: see `labkit.figures.new_figure`.
        across, up: the axes' labels; with the first the places. lines: values by name ("": no legend).
        log: which axes are logarithmic: "x", "y" or "xy".
        mark: a place with a dashed line upwards.
    """
    fig, (ax,) = new_figure(finding, subtitle)
    label, places = across
    for color, (name, values) in zip(COLORS, lines.items(), strict=False):
        ax.plot(places, values, "o-" if dots else "-", color=color, label=name)
    ax.set(xlabel=label, ylabel=up)
    _scale(ax, places, log)
    if ticks:
        ax.set_xticks(ticks)
    if mark:
        ax.axvline(mark, color=ORANGE, linestyle="--")
    plain_numbers(ax, "xy" if "x" in log else "y")
    if any(lines):
        ax.legend()
    show_figure(fig)


def _scale(ax: Axes, places: Numbers, log: str) -> None:
    if "x" in log:
        ax.set_xscale("symlog" if min(places) <= 0 else "log")
    if "y" in log:
        ax.set_yscale("log")
    else:
        ax.set_ylim(0, None)


def show_bars(
    finding: str,
    subtitle: str,
    unit: str,
    bars: Mapping[str, float],
    labels: Sequence[str],
    *,
    orange: Sequence[str] = (),
) -> None:
    """Lying bars, the first on top. `labels`: what stands at each end. `orange`: the bars in the second colour."""
    fig, (ax,) = new_figure(finding, subtitle, size=(9, 4))
    drawn = ax.barh(
        list(bars), list(bars.values()), color=[ORANGE if name in orange else BLUE for name in bars]
    )
    ax.bar_label(drawn, labels, padding=3)
    ax.set(xlabel=unit, xlim=(0, 1.25 * max(bars.values())))
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    show_figure(fig)
