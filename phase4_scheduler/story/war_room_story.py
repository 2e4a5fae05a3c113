"""The output of war_room.py: the dashboard, the questions, the answer, and the check that excludes each other cause."""

import math
import random
import re

from labkit.lab import Lab
from labkit.predictions import show_value
from phase4_scheduler.server.drills import (
    DRILLS,
    Check,
    Drill,
    DrillRun,
    Fault,
    Findings,
    Moments,
    Stage,
    investigate,
    query,
)
from phase4_scheduler.server.drills.promql import AGGREGATIONS, OVER_RANGE

WINDOW, QUICK_WINDOW = 12, 2  # seconds of a "minute"
BACK = 1.25  # a figure has come back if it is within this factor of the one before


KNOWN = f"""of a range, such as x[12s]  {", ".join(OVER_RANGE)}
of a vector                 {", ".join(AGGREGATIONS)}, with by (...); histogram_quantile(0.95, ...)
between two                 + - * /   > < >= <= == !=   and or unless
the runbook's A(x)          is no function: write rate(vllm:x_sum[12s]) / rate(vllm:x_count[12s])
unknown here                deriv and the rest of PromQL"""


def list_drills(lab: Lab) -> None:
    lab.table(
        "The drills",
        ["drill", "question", "causes to choose from", "faults"],
        [[drill.number, drill.question, len(drill.causes), len(drill.faults)] for drill in DRILLS.values()],
        note="You are on call with --drill N --seed S --predict. Each seed selects one of the drill's faults, which is put into the "
        "server. A right answer counts 3 points. The other causes are only plausible.",
    )


def draw_fault(drill: Drill, seed: int, faults: dict[str, Fault] | None = None) -> str:
    """The name of the fault that this seed draws."""
    return random.Random(f"{drill.number} {seed}").choice(sorted(faults or drill.faults))


def play_drill(lab: Lab, number: int | None) -> None:
    drill = DRILLS[number or (5 if lab.quick else 1)]
    window = QUICK_WINDOW if lab.quick else WINDOW
    # What is deployed needs a second server, which takes its time to start.
    quick = {name: fault for name, fault in drill.faults.items() if not fault.options}
    fault = draw_fault(drill, lab.seed, quick if lab.quick else None)
    lab.title(f"Drill {drill.number}: {drill.question}")
    lab.say(f"The pager: {drill.pager}")
    with Stage(drill, fault, lab.seed, window) as stage:
        stage.be_healthy()
        stage.break_down()
        run = stage.run
        show_dashboard(lab, run)
        if lab.args.predict:
            ask_in_promql(lab, stage)
        findings = investigate(drill.alarms, drill.causes, run.moments)
        lab.predict(
            claim=f"war-room-{drill.number}",
            question=f"drill {drill.number}, seed {lab.seed}: the cause ({', '.join(c.name for c in drill.causes)})",
            predicted=findings.verdict,
            measured=run.cause,
            kind="timing",
            choices=[cause.name for cause in drill.causes],
            note="Predicted: the result of the rules below. Measured: "
            + ("the clients' clocks." if stage.fault.measured else "the fault that was put in."),
        )
        explain(lab, run, findings)
        if not lab.quick:
            stage.recover()
            show_recovery(lab, run)
    lab.record(drill=drill.number, cause=run.cause, verdict=findings.verdict, window_seconds=window)


def show_dashboard(lab: Lab, run: DrillRun) -> None:
    drill, moments = run.drill, run.moments
    lab.table(
        f"The dashboard: {run.window} seconds before, {run.window} seconds now",
        ["figure", "before", "now"],
        [[title, shown(moments.then(text)), shown(moments.now(text))] for title, text in drill.watch.items()],
        note="Means are sum / count of a histogram, so the means of the parts add up. (Quantiles of the queue and prefill times are useless here: their first bucket ends at 0.3 s.)",
    )
    lab.table("The possible causes", ["cause", ""], [[cause.name, cause.says] for cause in drill.causes])


def shown(value: float) -> str:
    return "no data" if math.isnan(value) else show_value(float(value))


def ask_in_promql(lab: Lab, stage: Stage) -> None:
    """Queries that the learner types, on what has been scraped so far."""
    run = stage.run
    lab.say(f"""Query the metrics in PromQL. A minute of this drill lasts {run.window} s, so [1m] means [{run.window}s] here. A longer
        range would mix the healthy window with the faulty one. Each query returns its value before the fault and now. `help` lists
        the functions. An empty line continues with your answer.""")
    first = next(iter(run.drill.watch.values()))
    lab.show(f"for example: {run.moments.text(first)}")
    while True:
        try:
            text = input("  PromQL> ").strip()
        except EOFError:
            return
        if not text:
            return
        if text.lower() in [cause.name for cause in run.drill.causes]:
            lab.show("That is a cause, not a query: an empty line continues with your answer.")
            continue
        if text == "help":
            lab.show(KNOWN)
            continue
        text = run.moments.text(text)
        if any(seconds > run.window for seconds in ranges_of(text)):
            lab.show(f"a range above {run.window} s mixes before and now: use [1m]")
            continue
        try:
            before, now = (as_lines(query(run.recording, text, at)) for at in (run.healthy, run.faulty))
        except ValueError as error:
            lab.show(str(error))
        else:
            lab.show(f"before  {before}\nnow     {now}")


def ranges_of(text: str) -> list[int]:
    """Seconds of each range in a query."""
    return [
        int(n) * dict(s=1, m=60, h=3600, d=86400)[unit] for n, unit in re.findall(r"\[(\d+)([smhd])\]", text)
    ]


def as_lines(result: float | dict) -> str:
    """A query's result, a line for each set of labels."""
    if not isinstance(result, dict):
        return shown(result)
    lines = []
    for labels, value in result.items():
        pairs = [f'{k}="{v}"' for k, v in sorted(labels) if k not in ("__name__", "model_name", "engine")]
        lines.append(f"{shown(value)}  {{{', '.join(pairs)}}}" if pairs else shown(value))
    return ("\n" + " " * 8).join(lines) or "empty: no series fits"


def explain(lab: Lab, run: DrillRun, findings: Findings) -> None:
    """For each cause the check that excludes it, with its value."""
    drill, moments = run.drill, run.moments
    lab.say(f"It was: {drill.cause(run.cause).says} Remedy: {drill.cause(run.cause).remedy}")
    rows = []
    for cause in drill.causes:
        against = findings.refuted.get(cause.name)
        for check in (against,) if against else cause.checks:
            says = check.says.removeprefix("and ")
            mark = "out" if against else "too close to call" if check.close(moments) else "agrees"
            rows.append([cause.name, mark, says, *found_and_wanted(check, moments)])
    lab.table(
        "What the metrics say about each cause",
        ["cause", "", "it would mean that ...", "found", "wanted"],
        rows,
    )
    lab.table(
        "The queries that exclude the other causes",
        ["cause", "PromQL"],
        [[name, moments.text(check.query)] for name, check in findings.refuted.items()],
    )


def found_and_wanted(check: Check, moments: Moments) -> tuple[str, str]:
    unit, value = " x" if check.of == "ratio" else "", check.value(moments)
    rounded = shown(value)
    if abs(value - check.bound) < 0.01 * check.bound:
        rounded = f"{value:.5g}"  # or it might look like the bound itself
    margin = f" by {check.margin:.0%}" if check.margin else ""
    return rounded + unit, f"{check.op} {check.bound:g}{unit}{margin}"


def show_recovery(lab: Lab, run: DrillRun) -> None:
    figure, back = run.drill.figure, run.back_to_normal
    title = next(title for title, query in run.drill.watch.items() if query == figure)
    lab.table(
        "The fault is removed",
        [f"the figure of the drill, over {run.window} seconds", title, "x of before"],
        [
            ["before", shown(run.moments.then(figure)), 1.0],
            ["with the fault", shown(run.moments.now(figure)), run.moments.ratio(figure)],
            ["without it", shown(back.now(figure)), back.ratio(figure)],
        ],
    )
    if not 1 / BACK <= back.ratio(figure) <= BACK:
        lab.say(f"""The figure is not back where it was: it is {back.ratio(figure):.2f} times what it was before the fault. Do not
            trust this run: {run.window} seconds are short, and another program may have computed on this machine. Run it again.""")
    lab.record(during=run.moments.ratio(figure), recovered=back.ratio(figure))
