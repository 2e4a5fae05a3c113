"""The figure of kernel_benchmark.py: how close every kernel comes to its own limit."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from labkit.figures import BLUE, GREY, INK, ORANGE, new_figure
from phase5_real_gpu.measuring.measurements import Measurement


def colour_of(name: str) -> str:
    if name.startswith(("gather-", "python-")):
        return GREY
    return ORANGE if name.startswith(("sdpa-", "flashinfer-", "torch-")) else BLUE


def draw_kernels(results: Sequence[Measurement], machine: str, dtype: str) -> Figure:
    """A bar for each kernel, by case: its share of the machine's limit, and its time."""
    ours = [r.share_of_limit for r in results if colour_of(r.name) == BLUE]
    reach = f" reach {100 * min(ours):.0f} to {100 * max(ours):.0f}% of" if ours else " beside"
    others = [r.name for r in results if colour_of(r.name) == ORANGE]
    peers = sorted({"FlashInfer's" if n.startswith("flash") else "torch's" for n in others}, reverse=True)
    orange = f" Orange: {' or '.join(peers)}." * bool(peers)
    cases = len({r.details["case"] for r in results})
    fig, (ax,) = new_figure(
        f"The engine's kernels{reach} this machine's limit",
        f"{machine}, {dtype}. Blue: the engine's kernels. Grey: simpler implementations.{orange}",
        size=(7.2, max(4.2, 0.28 * len(results) + 0.3 * cases + 1.7)),
    )
    place, places, last = 0.0, [], ""
    for r in results:
        if r.details["case"] != last:
            place += 0.35 if last else 0.0
            ax.text(0.006, place, r.details["case"], va="center", fontsize=10, fontweight="bold", color=INK)
            place += 0.95
            last = r.details["case"]
        share, bar = r.share_of_limit, min(r.share_of_limit, 1.2)
        ax.barh(place, bar, 0.74, color=colour_of(r.name))
        time = f"{r.value:,.0f} µs" if r.value >= 10 else f"{r.value:.1f} µs"
        text = f"{share:.0%}  {time}" if share >= 0.01 else f"{share:.2%}  {time}"
        inside = share > 0.7
        ax.text(
            bar + (-0.012 if inside else 0.012), place, text, va="center", fontsize=9.5,
            ha="right" if inside else "left", color="white" if inside else INK,
        )  # fmt: skip
        places.append(place)
        place += 1
    ax.axvline(1, color=INK, linewidth=1.4, zorder=0)
    ax.set_yticks(places, [r.details["kernel"] for r in results], fontsize=9.5)
    ax.set(xlim=(0, 1.3), xlabel="share of this machine's limit")
    ax.set_ylim(place - 0.4, -0.6)
    ax.grid(axis="y", visible=False)
    return fig
