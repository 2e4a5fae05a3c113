"""workload_simulator.py under load: what users feel, where trouble starts, one long prompt."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from labkit.errors import LabError
from labkit.figures import BLUE, GREY, INK, ORANGE, PURPLE, RED, new_figure, plain_numbers
from labkit.lab import Lab
from phase4_scheduler.simulator import load_tests
from phase4_scheduler.simulator.fleet import ReplicaConfig
from phase4_scheduler.simulator.latency import Latency, RequestRecord, little, summarise
from phase4_scheduler.simulator.load_tests import LoadPoint, Stall
from phase4_scheduler.simulator.traffic import TrafficRequest, draw_traffic

OTHERS, CHUNK = 32, 512  # one long prompt in virtual time: others at work, tokens per step


def virtual_run(lab: Lab, server: ReplicaConfig, trace: list[TrafficRequest] | None, most: float) -> None:
    """Part 3b: what the users feel at one load."""
    a = lab.args
    lab.title("What the users notice, in virtual time")
    lab.say("""TTFT: time to the first token. ITL: the gap between two tokens. p95: what 95 of 100 stay
        below. Goodput counts only requests served within limits that were set before (SLO, service level objective).""")
    n = a.requests or (200 if lab.quick else 2000)
    traffic = trace or draw_traffic(a.pattern, n, a.rate or 0.7 * most, a.burstiness, lab.seed)
    run = server.serve(lab.progress(traffic, f"{len(traffic):,} requests", total=len(traffic)))
    if not run.records:
        raise LabError(
            f"this server can serve none of the {run.refused:,} requests ({run.refusal}): choose another --cost"
        )
    if run.refused:
        lab.say(f"{run.refused:,} of {len(traffic):,} requests were refused. The first: {run.refusal}.")
    felt = summarise(run.records, a.ttft_slo, a.tpot_slo)
    lab.predict(
        claim="littles-law",
        question="requests in the system on average: arrival rate x mean stay, and counted by the scheduler",
        predicted=round(little(run.records), 6),
        measured=round(run.in_system_seconds / felt.seconds, 6),
        tolerance=1e-5,
        note="Little's law. It must hold to the last digit, or a request was lost or the clock is wrong.",
    )
    last = traffic[-1].arrival
    pace = f"{(len(traffic) - 1) / last:.2f} per second" if last else "all at once"
    what = f"{Path(a.trace).name if trace else a.pattern}, {pace}"
    show_latencies(lab, felt, run.records, f"{felt.requests:,} requests ({what})")
    cached = sum(r.num_cached_tokens for r in run.records) / felt.prompt_tokens
    lab.table(
        "The server during this time",
        ["figure", "value"],
        [
            ["requests per second, until the last one is done", felt.requests_per_second],
            ["answer tokens per second", felt.tokens_per_second],
            ["KV usage, mean", run.mean_usage()],
            ["KV usage, peak", run.peak_usage],
            ["steps", len(run.times)],
            ["preemptions", run.preemptions],
            ["prompt tokens found in the prefix cache", f"{cached:.1%}"],
        ],
    )
    dollars = getattr(server.cost, "dollars_per_hour", None)
    if dollars and felt.good:
        price = dollars / 3.6 / felt.goodput
        lab.say(f"""What it costs: at ${dollars:.2f} per hour, 1,000 requests served within the
            limits cost ${price:.2f}. Send it more, and each gets cheaper, until too many are too slow to count.""")
    lab.record(virtual=asdict(felt) | dict(
        kv_mean=run.mean_usage(), kv_peak=run.peak_usage, preemptions=run.preemptions, prefix_hit_rate=cached,
        refused=run.refused, steps=len(run.times),
    ))  # fmt: skip


def show_latencies(lab: Lab, felt: Latency, records: Sequence[RequestRecord], title: str) -> None:
    spreads = {"TTFT": felt.ttft, "ITL": felt.itl, "end to end": felt.e2e}
    rows = [[name, s.mean, s.p50, s.p95, s.p99, s.max] for name, s in spreads.items()]
    lab.table(title, ["seconds", "mean", "p50", "p95", "p99", "max"], rows)
    a = lab.args
    kinds = sorted({r.kind for r in records})
    by_kind = []
    for kind in [*kinds, "all"] if len(kinds) > 1 else ["all"]:
        part = summarise([r for r in records if kind in ("all", r.kind)], a.ttft_slo, a.tpot_slo)
        good = part.good / felt.seconds
        by_kind.append([kind, part.requests, part.ttft.p95, part.itl.p95, f"{part.good_share:.1%}", good])
    lab.table(
        f"Goodput: TTFT up to {a.ttft_slo:g} s, TPOT (mean gap of an answer) up to {a.tpot_slo:g} s",
        ["kind", "requests", "TTFT p95, s", "ITL p95, s", "good", "good requests/s"],
        by_kind,
    )


def load_sweep(lab: Lab, server: ReplicaConfig, most: float) -> None:
    """Part 4: latency against load, and the cache behind it."""
    a = lab.args
    lab.title("Where latency rises steeply")
    loads = (0.4, 0.65, 1.1) if lab.quick else (0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1, 1.1)
    n = 200 if lab.quick else 800
    points = [
        load_tests.load_point(server, a.pattern, n, load, most, lab.seed)
        for load in lab.progress(loads, f"{n} requests at {len(loads)} loads")
    ]
    bins = load_tests.ttft_by_usage(points)
    alarm = load_tests.alarming_usage(bins)
    longest = max(r.prompt_tokens for r in draw_traffic(a.pattern, 2000, 1.0, seed=lab.seed))
    if alarm is not None:
        calm = float(np.median([t for u, t in bins if u < 0.5]))
        worse = next(t for u, t in bins if u >= alarm - 1e-9)
        lab.predict(
            claim="kv-usage-alert",
            question="KV usage at the moment of arrival from which on TTFT (p95) rises steeply",
            predicted=round(1 - longest / server.cache_tokens, 2),
            measured=round(alarm, 2),
            source_says=0.9,
            tolerance=0.06,
            kind="timing",
            note=f"Measured in bins of 0.05. Below it the p95 is {calm:.2f} s, from there on {worse:.1f} s. The "
            f"longest prompt needs {-(-longest // server.block_size)} of {server.num_blocks - 1:,} blocks: if less is free, it waits, and "
            "all behind it. An average over minutes has to stay well below what a moment may reach.",
        )
    lab.table(
        f"{n} requests ({a.pattern}) at each load",
        ["load", "requests/s", "KV usage, mean", "TTFT p50, s", "TTFT p95, s", "p95 / p50", "ITL p95, s", "preempted per 100"],
        [[p.load, p.rate, p.usage, p.latency.ttft.p50, p.latency.ttft.p95,
          p.latency.ttft.p95 / p.latency.ttft.p50, p.latency.itl.p95, p.preemptions] for p in points],
        note="Load 1 is the server's highest throughput. The first fifth of the requests does not count.",
    )  # fmt: skip
    lab.record(load=[asdict(replace(p, arrivals=[])) for p in points], alarm_at_usage=alarm)
    subtitle = f"{a.pattern}, {n} requests per load; {server.cost.describe()}"
    lab.figure(draw_load(points, bins, alarm, subtitle), "load_knee")


def long_prompt(lab: Lab, server: ReplicaConfig) -> None:
    """Part 5: one long prompt among short ones, whole and in chunks."""
    lab.title("One long prompt, and all other requests")
    isl, osl = 100, 150
    long = min(server.scheduler.max_model_len - 8, 8000)
    blocks = (long + OTHERS * (isl + osl)) // server.block_size + OTHERS + 100  # room for all
    roomy = replace(server, num_blocks=blocks)
    whole, cut = (load_tests.serve_stalled(roomy, OTHERS, isl, osl, long, chunk) for chunk in (None, CHUNK))
    lab.predict(
        claim="chunked-prefill",
        question=f"longest gap between tokens of {OTHERS} users when a prompt of {long:,} tokens comes: whole / in chunks",
        predicted=[1000 * s for s in load_tests.predicted_stalls(server.cost, OTHERS, isl + 60, long, CHUNK)],
        measured=[1000 * whole.worst, 1000 * cut.worst],
        unit="ms",
        tolerance=0.05,
        note=f"Predicted from the clock's prices; chunks of {CHUNK} tokens per step. Usual is "
        f"{1000 * whole.usual:.0f} ms. The long prompt's own first token comes after {cut.ttft:.2f} s instead of "
        f"{whole.ttft:.2f}: that is the price.",
    )
    named = dict(whole=whole, chunked=cut)
    lab.record(stalls={k: dict(usual=s.usual, worst=s.worst, ttft=s.ttft) for k, s in named.items()})
    where = f"{OTHERS} running requests, a prompt of {long:,} tokens, chunks of {CHUNK}"
    lab.figure(draw_stalls(whole, cut, f"{where}; {server.cost.describe()}"), "long_prompt_stall")


# ---------------------------------------------------------------------- figures

Bins = Sequence[tuple[float, float]]  # see `ttft_by_usage`


def draw_load(points: Sequence[LoadPoint], bins: Bins, alarm: float | None, server: str) -> Figure:
    """Latency against load, KV usage and preemptions against load, TTFT against KV usage on arrival."""
    usual = points[0].latency.ttft.p95
    calm = next((p for p, after in pairwise(points) if after.latency.ttft.p95 > 2 * usual), None)
    fig, (left, middle, right) = new_figure(
        f"TTFT p95 rises steeply from {calm.rate:.2f} requests per second on, at a mean KV usage of {calm.usage:.0%}"
        if calm
        else "TTFT p95 does not double at any of these loads",
        server,
        panels=3,
        size=(7.2, 9.6),
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

    middle.plot(rate, [p.usage for p in points], marker="o", color=PURPLE, label="mean KV usage")
    middle.plot(
        rate, [p.preemptions / 100 for p in points], marker="s", color=ORANGE, label="preemptions per request"
    )
    middle.set(
        xlabel="requests per second", ylabel="share, or number per request", ylim=(0, 1.3), xlim=(0, None)
    )
    middle.legend(loc="upper left")

    usage, ttft = [u for u, _ in bins], [t for _, t in bins]
    high = [alarm is not None and u >= alarm - 1e-9 for u in usage]
    right.plot([u + 0.025 for u in usage], ttft, color=GREY, linewidth=1.2)
    right.scatter([u + 0.025 for u in usage], ttft, color=[RED if h else BLUE for h in high], zorder=3)
    right.axvline(0.9, color=INK, linestyle="--", linewidth=1.2)
    at_top = right.get_xaxis_transform()  # x in data, y as a share of the axes
    right.text(0.87, 0.99, "Raghavan's\nlimit: 0.9", transform=at_top, ha="right", va="top")
    right.set(xlabel="KV usage at arrival", ylabel="TTFT p95, s", yscale="log", xlim=(0, 1))
    plain_numbers(right, "y")
    return fig


def draw_stalls(whole: Stall, cut: Stall, where: str) -> Figure:
    """Gaps between the tokens of the other requests: the prompt whole, and in chunks."""
    fig, (ax,) = new_figure(
        f"One long prompt stops all other requests for {whole.worst:.1f} s; in chunks, for {1000 * cut.worst:.0f} ms",
        where,
        size=(7.2, 4.6),
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
