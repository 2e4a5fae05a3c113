"""The map of disaggregation.py: where prefill apart from decode wins, measured and in virtual time."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.errors import LabError
from labkit.figures import BLUE, GREY, INK, ORANGE, new_figure
from labkit.lab import Lab
from labkit.machine import environment
from phase4_scheduler.assembly import load_model
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase4_scheduler.simulator.real_time import measure_cost
from phase4_scheduler.simulator.step_size import StepSize
from phase4_scheduler.simulator.traffic import TrafficRequest
from phase5_real_gpu.parallel.engine_worker import WorkerConfig, own_cores, pin
from phase5_real_gpu.parallel.goodput_trials import Layout, serve_front
from phase5_real_gpu.parallel.measured_map import (
    KINDS,
    LAYOUTS,
    PROMISES,
    RATES,
    REQUESTS,
    Measured,
    virtual_goodput,
)
from phase5_real_gpu.parallel.proxy import Proxy
from phase5_real_gpu.parallel.replicas import Replicas

MODEL, DTYPE = "tales", "float32"


def front_of(layout: Layout) -> Proxy | Replicas:
    """Two processes with a core each. Raises LabError: this process may not use two cores."""
    cores = own_cores()
    if len(cores) < 2:
        raise LabError(
            f"two CPU cores are needed, on Linux, and this process may use {len(cores)}: give it more"
        )

    def worker(core: int, chunk: int) -> WorkerConfig:
        # The same prompts come at each rate, so nothing may be remembered of them.
        settings = dict(
            num_blocks=4000, max_num_seqs=64, max_num_batched_tokens=chunk, enable_prefix_caching=False
        )
        return WorkerConfig(MODEL, DTYPE, settings, core=core)

    if layout.split:
        return Proxy(worker(cores[0], layout.chunk), worker(cores[1], 2048))
    return Replicas([worker(core, layout.chunk) for core in cores[:2]])


def measure_map(lab: Lab, traffic: str, path: Path) -> None:
    """One kind of traffic on all layouts at all rates; or, for "cost", what a step costs on one core."""
    measured = Measured.load(path, whole=False) if path.exists() else Measured()
    if traffic == "cost":
        measure_step_cost(lab, measured)
    elif traffic in KINDS:
        measured.runs[traffic] = {}
        for layout in lab.progress(LAYOUTS, traffic):
            runs = measured.runs[traffic][layout.name] = {}
            front = front_of(layout)
            front.start()
            try:
                serve_front(
                    front, KINDS[traffic].draw(4, 20.0, 1), 8000
                )  # the first steps are slower than others
                for rate in RATES[traffic]:
                    records = serve_front(front, KINDS[traffic].draw(REQUESTS[traffic], rate, lab.seed), 8000)
                    runs[str(rate)] = [(round(r.ttft, 4), round(r.tpot, 5)) for r in records]
            finally:
                front.stop()
    else:
        raise LabError(f"no traffic is called {traffic!r}: cost, {', '.join(KINDS)}")
    measured.about = {"model": MODEL, "dtype": DTYPE, "taken": time.strftime("%d %B %Y")}
    measured.about |= {"machine": environment()}
    measured.save(path)
    lab.say(f"written to {path}")


def measure_step_cost(lab: Lab, measured: Measured) -> None:
    """Prices of a step on one core; and what a handover adds to the first token, beyond a step of the decode process."""
    requests, ttft = [TrafficRequest(0.3 * i, 256, 2) for i in range(15)], []
    for split in (True, False):
        front = front_of(Layout(split, 512))
        front.start()
        try:
            ttft.append(median(record.ttft for record in serve_front(front, requests, 8000)))
        finally:
            front.stop()
    pin(own_cores()[0])
    model = load_model(MODEL, DTYPE, "cpu")

    def make_engine(**settings: int) -> LLMEngine:
        return LLMEngine(model, config=EngineConfig(num_blocks=4000, **settings))

    cost = measure_cost(make_engine, model.config.max_context, 24, lab.seed)
    measured.prices = list(cost.prices)
    measured.handover = max(0.0, ttft[0] - ttft[1] - cost.seconds(StepSize.of([(256, 1)])))


def the_map(lab: Lab, measured: Measured) -> None:
    lab.title("Is it worth it?")
    lab.say(f"""Two cores. Either one process computes prompts and the other writes answers; or both are ordinary engines that do both.
        Chunks are tuned for each promise. Goodput: the highest rate at which 90 of 100 requests are served as promised. Measured on
        {measured.about["machine"].get("cpu", "a CPU")} on {measured.about["taken"]}, and here once more in virtual time.""")
    lab.table(
        "Traffic and promises",
        ["traffic", "prompt", "answer", "", "promise", "TTFT s", "TPOT ms"],
        [
            [name, kind.prompt, kind.answer, "", promise, limit.ttft, limit.tpot * 1e3]
            for (name, kind), (promise, limit) in zip(KINDS.items(), PROMISES.items(), strict=True)
        ],
    )
    ratios: dict[tuple[str, str], tuple[float, float]] = {}
    rows = []
    cells = [(traffic, promise) for traffic in KINDS for promise in PROMISES]
    for traffic, promise in lab.progress(cells, "nine cells in virtual time"):
        limit, row = PROMISES[promise], [traffic, promise]
        asked = limit, RATES[traffic], REQUESTS[traffic], lab.seed
        found = [measured.goodput(traffic, split, limit) for split in (True, False)]
        simulated = [virtual_goodput(measured, KINDS[traffic], split, *asked) for split in (True, False)]
        ratios[traffic, promise] = ratio(*found), ratio(*simulated)
        rows.append([*row, *found, *simulated, winner(ratio(*found)), winner(ratio(*simulated))])
    lab.table(
        "Goodput, requests a second",
        ["traffic", "promise", "apart", "alike", "apart, virtual", "alike, virtual", "wins", "virtual"],
        rows,
        note="Highest rates that were tried: "
        + ", ".join(f"{name} {max(rates):g}" for name, rates in RATES.items())
        + ".",
    )
    wins = sum(real > 1 for real, _ in ratios.values())
    # Where virtual time sees two equals it names nobody.
    same = sum((real > 1) == (virtual > 1) and virtual != 1 for real, virtual in ratios.values())
    lab.predict(
        claim="pd-contention",
        question="in how many of the nine cases do prefill and decode apart serve more than two ordinary engines?",
        predicted=sum(virtual > 1 for _, virtual in ratios.values()),
        source_says=9,
        measured=wins,
        kind="timing",
        tolerance=0.25,
        note="Steps do not get into each other's way any more. But a core that only computes prompts is idle when there are none, "
        "and one that only writes cannot help when there are many.",
    )
    lab.predict(
        claim="pd-simulated",
        question="of nine winners, how many does virtual time name?",
        predicted=[8, 9],
        between=True,
        measured=same,
        kind="timing",
    )
    lab.record(ratios={f"{t}, {p}": list(r) for (t, p), r in ratios.items()})
    lab.figure(draw_map(ratios), "disaggregation_map")


def ratio(apart: float, alike: float) -> float:
    """Where neither keeps the promise at any rate, nobody wins."""
    if not alike:
        return 10.0 if apart else 1.0
    return apart / alike


def winner(value: float) -> str:
    return "nobody" if value == 1 else "apart" if value > 1 else "alike"


TIE = 0.1  # rates were tried in steps, once each: ratios so near to 1 name no winner


def draw_map(ratios: dict[tuple[str, str], tuple[float, float]]) -> Figure:
    ties = sum(abs(real - 1) <= TIE for real, _ in ratios.values())
    wins = sum(real > 1 + TIE for real, _ in ratios.values())
    fig, [ax] = new_figure(
        f"Disaggregation serves more in {wins} of {len(ratios)} cases, as much in {ties}",
        "Goodput over that of two ordinary engines on the same two cores; in brackets in virtual time",
        size=(8.6, 4.6),
    )
    for x, traffic in enumerate(KINDS):
        for y, promise in enumerate(PROMISES):
            real, virtual = ratios[traffic, promise]
            strength = min(1.0, abs(float(np.log2(max(real, 1 / 16)))) / 2) * 0.75 + 0.1
            is_tie = abs(real - 1) <= TIE
            color = GREY if is_tie else BLUE if real > 1 else ORANGE
            ax.add_patch(Rectangle((x, y), 0.98, 0.98, color=color, alpha=strength, linewidth=0))
            text = "only apart" if real >= 10 else f"{real:.2f}" + " (tie)" * is_tie
            ax.text(x + 0.49, y + 0.58, text, ha="center", va="center", color=INK, fontsize=15, weight="bold")
            ax.text(x + 0.49, y + 0.28, f"({virtual:.2f})", ha="center", va="center", color=INK)
    ax.set(xlim=(0, 3), ylim=(0, 3))
    ax.set_xticks(
        [0.5, 1.5, 2.5], [f"{name}\n{kind.prompt} + {kind.answer} tokens" for name, kind in KINDS.items()]
    )
    ax.set_yticks(
        [0.5, 1.5, 2.5],
        [f"{name}\nTTFT {p.ttft:g} s, TPOT {p.tpot * 1e3:g} ms" for name, p in PROMISES.items()],
    )
    ax.tick_params(length=0)
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)
    return fig
