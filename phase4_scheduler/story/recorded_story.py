"""workload_simulator.py checked: 300 requests that vLLM served on real GPUs, and the same requests in virtual time."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from labkit.figures import BLUE, GREY, ORANGE, new_figure, plain_numbers
from labkit.lab import Lab
from phase4_scheduler.simulator.recorded_runs import (
    METRICS,
    QWEN3,
    RECORDED,
    STATISTICS,
    RecordedRun,
    errors,
    expert_table,
    replay,
    simulated_latencies,
    spread,
)
from phase4_scheduler.simulator.virtual_time import Run

Pair = tuple[RecordedRun, Run]


def the_truth(lab: Lab) -> None:
    """Part 2: the recorded runs. Quickly only one of them."""
    lab.title("Is the simulator accurate? 300 requests on real cards")
    lab.say("""Others let vLLM serve 300 requests on an RTX 4090, on an RTX PRO 6000 and on two of these, wrote down when each got its
        first and its last token, and timed the kernels one by one. The simulator gets these arrivals, lengths and kernel times,
        and its times are compared with the recorded ones. As in vLLM, each step is decided while the one before is
        computed.""")
    pairs: list[Pair] = []
    recordings = dict(RECORDED, qwen3=QWEN3)
    for name in ["rtx4090"] if lab.quick else recordings:
        recorded = recordings[name]
        cost = expert_table() if recorded is QWEN3 else recorded.kernel_table()
        if recorded.step:
            lab.say(f"""On {recorded.title} kernels alone are too fast. One number was fitted on the first half of the
                requests: {1000 * recorded.step:.2f} ms per step for all work outside of kernels.""")
        run = replay(recorded, cost)
        pairs.append((recorded, run))
        show(lab, name, recorded, run)
    lab.say("""The RTX 4090 has room for about forty requests, and the others wait minutes for it. There one request that just fits, or just does not, shifts
        all later ones. The clock cannot predict the tail of TPOT: decoding
        requests of different lengths wait for the longest, and the tables hold equal ones only.""")
    lab.figure(draw_replay(pairs), "recorded_runs")


def show(lab: Lab, name: str, recorded: RecordedRun, run: Run) -> None:
    off = errors(recorded, run)
    real = recorded.latencies()
    rows = [
        [f"{metric}, {statistic}", float(value), f"{ours:+.1f}%", f"{theirs:+.1f}%"]
        for metric, line, published in zip(METRICS, off, recorded.published)
        for statistic, value, ours, theirs in zip(STATISTICS, spread(real[metric]), line, published)
    ]
    lab.table(
        f"{recorded.model} on {recorded.title}: {len(run.times):,} steps, {run.preemptions} preemptions",
        ["", "recorded, s", "this simulator", "LLMServingSim"],
        rows,
        note="Percent that a simulator is off. LLMServingSim is the simulator of the authors of the tables.",
    )
    lab.record(**{f"replay_{name}": off.round(2).tolist()})


def draw_replay(pairs: Sequence[Pair]) -> Figure:
    """Simulated / recorded time of each request, over the recorded time."""
    means = [np.abs(errors(*pair)[[0, 2], 0]).max() for pair in pairs]
    fig, axes = new_figure(
        f"Simulated / recorded time of 300 requests: the means agree within {max(means):.1f}%",
        "recorded: vLLM 0.19, ShareGPT requests; simulated with kernels timed one by one (LLMServingSim, MIT)",
        panels=len(pairs),
        size=(7.2, 9.6),
    )
    for ax, (recorded, run) in zip(axes, pairs):
        real, ours = recorded.latencies(), simulated_latencies(run)
        for name, colour, marker, label in (
            ("TTFT", ORANGE, "o", "first token"),
            ("E2E", BLUE, "s", "last token"),
        ):
            style = dict(color=colour, alpha=0.5, markersize=4)
            ax.plot(real[name], ours[name] / real[name], marker, label=label, **style)
        ax.axhline(1, color=GREY, linewidth=1)
        ax.set(xlabel="recorded, s", ylabel="simulated / recorded", xscale="log", yscale="log")
        plain_numbers(ax)
        ax.set(ylim=(0.1, 10), yticks=[0.1, 0.2, 0.5, 1, 2, 5, 10])
        ax.set_title(f"{recorded.model} on {recorded.title}", loc="left", fontsize=11)
        ax.legend()
    return fig
