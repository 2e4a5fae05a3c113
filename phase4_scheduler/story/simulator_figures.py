"""The figures of the workload simulator."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from labkit.figures import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, RED, new_figure, plain_numbers
from phase4_scheduler.simulator.clusters import NO_CLUSTERS
from phase4_scheduler.simulator.load_tests import LoadPoint, Stall
from phase4_scheduler.simulator.traffic import TrafficRequest

KIND_COLOURS = {"summarisation": BLUE, "chat": ORANGE, "code": GREEN}


def draw_clusters(
    drawn: Sequence[TrafficRequest], recorded: Sequence[TrafficRequest], counts: Sequence[int], best: float
) -> Figure:
    """Lengths of drawn and of recorded requests. `best`: the highest silhouette of the recorded ones."""
    seen = f"{counts[1]} clusters" if counts[1] > 1 else "no clusters"
    fig, axes = new_figure(
        f"Drawn traffic shows the {counts[0]} ranges it is drawn from; recorded requests form {seen}",
        f"k-means on log lengths; mean silhouette of the recorded requests {best:.2f} (below {NO_CLUSTERS}: no clusters)",
        panels=2,
        size=(11.0, 4.8),
    )
    titles = (f"{len(drawn):,} drawn requests", f"{len(recorded):,} recorded requests (ShareGPT)")
    for ax, requests, title in zip(axes, (drawn, recorded), titles, strict=True):
        for kind in sorted({r.kind for r in requests} & set(KIND_COLOURS)) or [""]:
            of_kind = [r for r in requests if kind in ("", r.kind)]
            lengths = ([r.prompt_tokens for r in of_kind], [r.output_tokens for r in of_kind])
            colour = KIND_COLOURS.get(kind, GREY)
            ax.plot(*lengths, ".", color=colour, alpha=0.35, markersize=4, label=kind or "requests")
        ax.set(xlabel="ISL, prompt tokens", ylabel="OSL, answer tokens", xscale="log", yscale="log")
        ax.set_title(title, loc="left", fontsize=10)
        plain_numbers(ax)
        ax.legend(loc="best", fontsize=9)
    axes[1].set(xlim=axes[0].get_xlim(), ylim=axes[0].get_ylim())
    return fig


Bins = Sequence[tuple[float, float, int]]  # see `ttft_by_usage`


def draw_load(points: Sequence[LoadPoint], bins: Bins, alarm: float | None, server: str) -> Figure:
    """Latency against load, KV usage and preemptions against load, TTFT against KV usage on arrival."""
    usual = points[0].latency.ttft.p95
    risen = next((p for p in points if p.latency.ttft.p95 > 2 * usual), None)
    fig, (left, middle, right) = new_figure(
        f"At {risen.rate:.2f} requests per second TTFT p95 has doubled, at a mean KV usage of {risen.usage:.0%}"
        if risen
        else "TTFT p95 does not double at any of these loads",
        server,
        panels=3,
        size=(14.2, 4.6),
    )
    rate = [p.rate for p in points]
    for name, rank, colour, marker in (
        ("ttft", "p95", RED, "o"),
        ("ttft", "p50", ORANGE, "s"),
        ("itl", "p95", BLUE, "^"),
    ):
        values = [getattr(getattr(p.latency, name), rank) for p in points]
        left.plot(rate, values, marker=marker, color=colour, label=f"{name.upper()}, {rank}")
    left.set(xlabel="requests per second", ylabel="seconds", yscale="log", xlim=(0, None))
    plain_numbers(left, "y")
    left.legend(loc="upper left")

    middle.plot(rate, [p.usage for p in points], marker="o", color=PURPLE, label="mean KV usage, 0 to 1")
    middle.plot(
        rate, [p.preemptions / 100 for p in points], marker="s", color=ORANGE, label="preemptions per request"
    )
    middle.set(
        xlabel="requests per second", ylabel="share, or number per request", ylim=(0, None), xlim=(0, None)
    )
    middle.legend(loc="upper left")

    usage, ttft = [u for u, _, _ in bins], [t for _, t, _ in bins]
    high = [alarm is not None and u >= alarm - 1e-9 for u in usage]
    right.plot([u + 0.025 for u in usage], ttft, color=GREY, linewidth=1.2)
    right.scatter([u + 0.025 for u in usage], ttft, color=[RED if h else BLUE for h in high], zorder=3)
    right.axvline(0.9, color=INK, linestyle="--", linewidth=1.2)
    at_top = right.get_xaxis_transform()  # x in data, y as a share of the axes
    right.text(0.89, 0.99, "limit of an article: 0.9", transform=at_top, ha="right", va="top")
    right.set(xlabel="KV usage at the moment of arrival", ylabel="TTFT p95, s", yscale="log", xlim=(0, 1))
    plain_numbers(right, "y")
    return fig


def draw_stalls(whole: Stall, cut: Stall, where: str) -> Figure:
    """Gaps between the tokens of the other requests: the prompt whole, and in chunks."""
    fig, (ax,) = new_figure(
        f"One long prompt stops all other requests for {whole.worst:.1f} s; in chunks, for {1000 * cut.worst:.0f} ms",
        where,
        size=(10.8, 4.6),
    )
    for stall, colour, label in ((whole, RED, "prompt at once"), (cut, BLUE, "chunked prefill")):
        label += f": worst gap {1000 * stall.worst:,.0f} ms; its own TTFT {stall.ttft:.2f} s"
        points = zip(*((when, 1000 * gap) for when, gap in stall.gaps))
        ax.plot(*points, "o", color=colour, markersize=4, alpha=0.5, label=label)
    ax.axhline(1000 * whole.usual, color=GREY, linestyle="--", linewidth=1.2)
    ax.set(
        xlabel="seconds after the long prompt arrived", ylabel="gap before a token, ms", yscale="log",
        xlim=(0, 2.2 * max(whole.ttft, cut.ttft)),
    )  # fmt: skip
    low, high = ax.get_ylim()
    ax.set_ylim(low, high * 3)  # room for the legend
    plain_numbers(ax, "y")
    ax.legend(loc="upper right", fontsize=9)
    return fig


def draw_timeline(run, server: str, seconds: float = 300.0) -> Figure:
    """Running and waiting requests, and KV usage, around the first moment with the highest usage."""
    times, usage = np.asarray(run.times), np.asarray(run.usage)
    begin = max(0.0, times[int(usage.argmax())] - seconds / 2)
    shown = (times >= begin) & (times <= begin + seconds)
    fig, (left, right) = new_figure(
        f"Arrivals come in waves: the cache is {run.mean_usage():.0%} full on average, "
        f"{run.peak_usage:.0%} at the highest moment",
        f"{seconds:g} s around that moment; {server}",
        panels=2,
    )
    for values, colour, style, label in (
        (run.running, BLUE, "-", "running"),
        (run.waiting, ORANGE, "--", "waiting"),
    ):
        left.plot(times[shown], np.asarray(values)[shown], style, color=colour, linewidth=1.4, label=label)
    left.set(xlabel="seconds", ylabel="requests", ylim=(0, None))
    left.legend()
    right.plot(times[shown], usage[shown], color=PURPLE, linewidth=1.4)
    right.axhline(run.mean_usage(), color=INK, linestyle="--", linewidth=1.2)
    right.text(begin, 0.03, "dashed: mean of the whole run", color=INK, fontsize=9)
    right.set(xlabel="seconds", ylabel="KV usage, 0 to 1", ylim=(0, 1.02))
    return fig
