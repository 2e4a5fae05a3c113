"""The figures of the workload simulator."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from labkit.figures import BLUE, COLORS, GREEN, GREY, INK, ORANGE, PURPLE, RED, new_figure, plain_numbers
from phase4_scheduler.simulator.clusters import Clusters
from phase4_scheduler.simulator.load_tests import LoadPoint, Stall
from phase4_scheduler.simulator.traffic import TrafficRequest

KIND_COLOURS = {"summarisation": BLUE, "chat": ORANGE, "code": GREEN}


def draw_clusters(
    requests: Sequence[TrafficRequest], found: Clusters, pure: float, alone: tuple[int, int]
) -> Figure:
    """Lengths as points, and the histograms of ISL and OSL above each other."""
    isl = np.array([r.prompt_tokens for r in requests])
    osl = np.array([r.output_tokens for r in requests])
    kinds = [r.kind for r in requests]
    groups = f"{len(found.centres)} clusters" if len(found.centres) > 1 else "no clusters"
    fig, (left, middle, right) = new_figure(
        f"Mixed traffic falls into {groups}; prompt lengths alone show {alone[0]}, answer lengths alone {alone[1]}",
        f"{len(requests):,} requests; k-means on log lengths, silhouette "
        f"{found.silhouettes.get(len(found.centres), 0):.2f}; {pure:.1%} of the requests in a cluster are of one kind",
        panels=3,
        size=(13.5, 4.6),
        width_ratios=(1.25, 1, 1),
    )
    for kind, colour in KIND_COLOURS.items():
        of_kind = np.array([k == kind for k in kinds])
        left.plot(isl[of_kind], osl[of_kind], ".", color=colour, alpha=0.35, markersize=4, label=kind)
    centres = np.exp(found.centres)
    left.plot(centres[:, 0], centres[:, 1], "X", color=INK, markersize=11, label="cluster centre")
    left.set(xlabel="ISL, prompt tokens", ylabel="OSL, answer tokens", xscale="log", yscale="log")
    plain_numbers(left)
    legend = left.legend(loc="upper right", fontsize=9)
    for handle in legend.legend_handles:
        handle.set(alpha=1, markersize=7)
    for ax, lengths, name in ((middle, isl, "ISL, prompt tokens"), (right, osl, "OSL, answer tokens")):
        edges = np.geomspace(lengths.min(), lengths.max() + 1, 41)
        parts = [lengths[np.array([k == kind for k in kinds])] for kind in KIND_COLOURS]
        ax.hist(parts, bins=edges, stacked=True, histtype="stepfilled", color=list(KIND_COLOURS.values()))
        ax.set(xlabel=name, ylabel="requests", xscale="log")
        plain_numbers(ax, "x")
    return fig


Bins = Sequence[tuple[float, float, int]]  # see `ttft_by_usage`


def draw_load(
    points: Sequence[LoadPoint], bins: Bins, doubled: float | None, alarm: float | None, server: str
) -> Figure:
    """Latency against load, KV usage and preemptions against load, TTFT against KV usage on arrival."""
    where = f"from {doubled:.0%} mean KV usage on" if doubled else "not within these loads"
    fig, (left, middle, right) = new_figure(
        f"Users wait twice as long {where}: the average hides the moments when the cache is full",
        server,
        panels=3,
        size=(14.2, 4.6),
    )
    rate = [p.rate for p in points]
    for name, rank, colour in (("ttft", "p95", RED), ("ttft", "p50", ORANGE), ("itl", "p95", BLUE)):
        values = [getattr(getattr(p.latency, name), rank) for p in points]
        left.plot(rate, values, marker="o", color=colour, label=f"{name.upper()}, {rank}")
    left.set(xlabel="requests a second", ylabel="seconds", yscale="log", xlim=(0, None))
    plain_numbers(left, "y")
    left.legend(loc="upper left")

    middle.plot(rate, [p.usage for p in points], marker="o", color=PURPLE)
    middle.set(xlabel="requests a second", ylabel="mean KV usage", ylim=(0, 1.05), xlim=(0, None))
    middle.yaxis.label.set_color(PURPLE)
    if doubled:
        middle.axhline(doubled, color=RED, linestyle="--", linewidth=1.2)
        middle.text(0, doubled + 0.01, " TTFT p95 has doubled", color=RED)
    twin = middle.twinx()
    twin.plot(rate, [p.preemptions for p in points], marker="s", color=GREY)
    twin.set(ylabel="preemptions per 100 requests", ylim=(0, None))
    twin.yaxis.label.set_color(GREY)
    twin.grid(False)
    twin.spines["right"].set_visible(True)

    usage, ttft = [u for u, _, _ in bins], [t for _, t, _ in bins]
    high = [alarm is not None and u >= alarm - 1e-9 for u in usage]
    right.plot([u + 0.025 for u in usage], ttft, color=GREY, linewidth=1.2)
    right.scatter([u + 0.025 for u in usage], ttft, color=[RED if h else BLUE for h in high], zorder=3)
    right.axvline(0.9, color=INK, linestyle="--", linewidth=1.2)
    at_top = right.get_xaxis_transform()  # x in data, y as a share of the axes
    right.text(0.89, 0.99, "the article's 0.9", transform=at_top, ha="right", va="top")
    right.set(xlabel="KV usage at the moment of arrival", ylabel="TTFT p95, s", yscale="log", xlim=(0, 1))
    plain_numbers(right, "y")
    return fig


def draw_stalls(panels: Sequence[tuple[str, Stall, Stall]]) -> Figure:
    """For each place (virtual, real): gaps between tokens of the others, prompt whole and in pieces."""
    name, whole, cut = panels[0]
    fig, axes = new_figure(
        f"One long prompt stops all other requests for {whole.worst:.1f} s; in pieces, for {1000 * cut.worst:.0f} ms",
        "Each point is a token of a request that was running before: how long after the one before it came",
        panels=len(panels),
        size=(6.2 * len(panels) + 0.6, 4.6),
    )
    for ax, (name, whole, cut) in zip(axes, panels, strict=True):
        for stall, colour, label in ((whole, RED, "prompt at once"), (cut, BLUE, "chunked prefill")):
            label += f": worst gap {1000 * stall.worst:,.0f} ms; its own TTFT {stall.ttft:.2f} s"
            points = zip(*((when, 1000 * gap) for when, gap in stall.gaps))
            ax.plot(*points, "o", color=colour, markersize=4, alpha=0.5, label=label)
        ax.axhline(1000 * whole.usual, color=GREY, linestyle="--", linewidth=1.2)
        ax.set(
            xlabel="seconds after the long prompt arrived", ylabel="gap between tokens, ms", yscale="log",
            xlim=(0, 2.2 * max(whole.ttft, cut.ttft)),
        )  # fmt: skip
        low, high = ax.get_ylim()
        ax.set_ylim(low, high * 3)  # room for the legend
        plain_numbers(ax, "y")
        ax.set_title(name, fontsize=10, loc="left")
        ax.legend(loc="upper right", fontsize=9)
    return fig


def draw_timeline(run, server: str) -> Figure:
    """Running and waiting requests, and how full the cache was, over the run."""
    fig, (left, right) = new_figure(
        f"Arrivals come in waves: the cache is {run.mean_usage():.0%} full on average, "
        f"{run.peak_usage:.0%} at the worst moment",
        server,
        panels=2,
    )
    times = np.asarray(run.times)
    left.plot(times, run.running, color=BLUE, linewidth=1.2, label="running")
    left.plot(times, run.waiting, color=ORANGE, linewidth=1.2, label="waiting")
    left.set(xlabel="seconds", ylabel="requests", ylim=(0, None))
    left.legend()
    right.plot(times, run.usage, color=COLORS[4], linewidth=1.2)
    right.set(xlabel="seconds", ylabel="KV usage", ylim=(0, 1.02))
    return fig
