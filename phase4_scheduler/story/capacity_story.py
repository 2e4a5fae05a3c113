"""The chapters of capacity_planner.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.lab import Lab
from phase4_scheduler.simulator.fleet import serve_fleet
from phase4_scheduler.simulator.latency import summarise
from phase4_scheduler.simulator.planning import (
    CLOCK_EFFICIENCY,
    CLOCK_RANGE,
    GROWTH,
    RECORDED_EFFICIENCY,
    Estimate,
    Plan,
    efficiency_of,
    p95,
    settled,
)
from phase4_scheduler.simulator.routers import ROUTERS, LeastLoaded
from phase4_scheduler.simulator.traffic import TRACE_BLOCK, TrafficRequest, at_rate
from phase4_scheduler.story.capacity_task import BLOCK_SIZE, Task


def the_plan(lab: Lab, task: Task) -> Plan:
    lab.title("The plan")
    plan = task.plan(watch=lambda requests, what: lab.progress(requests, what, total=len(task.traffic)))
    estimate, cards = task.cards(task.load.replicas), task.cards(plan.replicas)
    lab.predict(
        claim="cards-needed",
        question="cards that meet the SLO (predicted: those that the computing alone keeps busy)",
        predicted=task.cards(task.least),
        measured=cards,
        unit="cards",
        kind="timing",
        note=f"One replica gets {task.load.most:.3g} requests per second done while others wait, and {task.load.rate:.3g} arrive: "
        f"{estimate:.1f} cards. An SLO costs cards beyond that, since requests come in waves.",
    )
    percent, seconds, gap = "{:.1%}".format, "{:.2f} s".format, "{:.4f} s".format
    lab.table(
        show_fleet(task, plan),
        ["", "value", "95 of 100 such runs"],
        [
            ["requests within the SLO", percent(plan.kept.value), show_interval(plan.kept, percent)],
            ["TTFT p95", seconds(plan.ttft.value), show_interval(plan.ttft, seconds)],
            ["TPOT p95", gap(plan.tpot.value), show_interval(plan.tpot, gap)],
            ["dollars per hour", f"{plan.dollars_per_hour:.2f}", ""],
            ["dollars for a million answer tokens", f"{plan.dollars_per_million:.2f}", ""],
            ["headroom: more traffic it takes", show_headroom(plan), ""],
            ["what breaks first", plan.limit, ""],
        ],
        note="Intervals: block bootstrap over 25 stretches of requests. They say what another draw of such traffic "
        "would change, not what is wrong with the clock.",
    )
    if task.cells > 1:
        lab.say(f"""All {task.cells:,} fleets together: {task.cells * cards:,} cards, ${task.cells * plan.dollars_per_hour:,.0f} an
            hour.""")
    if plan.kept.low < task.slo.share:
        lab.say(f"""The interval reaches below the {task.slo.share:.0%} that are the SLO, so this is close. Before
            you sign, simulate more (--requests), or add a card.""")
    if refused := plan.run.refused:
        lab.say(f"""{len(refused):,} of {len(task.traffic):,} requests were refused, and count as missed. The first:
            {plan.run.refusal}.""")
    trust(lab, task)
    figures = {name: getattr(plan, name) for name in ("replicas", "dollars_per_hour", "headroom", "limit")}
    lab.record(plan=figures | {"cards": cards, "cells": task.cells, "estimate": estimate})
    return plan


def trust(lab: Lab, task: Task) -> None:
    """How far the clock can be wrong, and how many cards it would take then."""
    least, most = CLOCK_RANGE
    worst, then, slowest = None, "", CLOCK_EFFICIENCY / most
    if task.efficiency > slowest:
        then = f" If they take {most:g} times as long as at 80%, "
        try:
            worst = task.cards(task.on(efficiency=slowest).plan().replicas)
            then += f"the plan is {worst} x {task.card.title}."
        except LabError as error:
            then += f"{error}."
    first, second = (RECORDED_EFFICIENCY[name] for name in ("rtx4090", "rtxpro6000"))
    lab.say(f"""The clock is computed from a data sheet. Mean times of vLLM 0.19 (Llama 3.1 8B in 16 bit, recorded by others) fit steps at
        {first:.0%} of the peaks on an RTX 4090 and at {second:.0%} on an RTX PRO 6000. So the range of this clock is {least:g} to {most:g} times
        the time of a step at {CLOCK_EFFICIENCY:.0%}.{then}""")
    unknown = [
        what
        for what, here in (
            ("another --efficiency", task.efficiency != efficiency_of(task.card)),
            (f"weights in {task.precision}", task.precision not in ("FP16", "BF16")),
            (f"a cache in {task.kv_precision}", task.kv_precision != "FP16"),
            ("cards that share a model", task.tensor_parallel_size > 1),
            ("a mixture of experts", task.shape.num_experts > 0),
            (task.card.title, task.card.name not in RECORDED_EFFICIENCY),
        )
        if here
    ]
    if unknown:
        lab.say(
            f"""Never compared with a recording: {", ".join(unknown)}. Measure one replica before you buy many."""
        )
    lab.record(cards_if_slow=worst, never_validated=unknown)


def show_headroom(plan: Plan) -> str:
    """It was tried in steps of 5%, up to twice the traffic."""
    return {GROWTH[0]: f"under {GROWTH[1]:.0%}", GROWTH[-1]: "100% or more"}.get(
        plan.headroom, f"{plan.headroom:.0%}"
    )


def short_limit(plan: Plan) -> str:
    """ "TTFT: waiting for a running request to end (max_num_seqs)" -> "TTFT, max_num_seqs"."""
    what, _, short = plan.limit.rpartition("(")
    return f"{what.partition(':')[0]}, {short.rstrip(')')}" if what else plan.limit


def show_fleet(task: Task, plan: Plan) -> str:
    n, s = task.tensor_parallel_size, "s" * (plan.replicas > 1)
    return (
        f"{plan.replicas} x {task.card.title}"
        if n == 1
        else f"{plan.replicas} replica{s} of {n} x {task.card.title}"
    )


def show_interval(estimate: Estimate, show: Any) -> str:
    return f"{show(estimate.low)} to {show(estimate.high)}"


def fewer_and_more(lab: Lab, task: Task, plan: Plan) -> None:
    """The table for a manager: what each further card buys."""
    lab.title("The effect of more or fewer cards")
    n, rows = plan.replicas, []
    seconds, milliseconds = "{:.2f}".format, lambda gap: f"{1000 * gap:.0f}"
    for count in lab.progress(sorted({max(1, n - 1), n, n + 1}), "fleets around the plan"):
        run = plan.run if count == n else serve_fleet(task.traffic, task.config, count, task.make_router())
        ttft, gap = (Estimate.of(felt, p95) for felt in zip(*((r.ttft, r.tpot) for r in settled(run))))
        felt = [
            f"{show(p.value)} ({show_interval(p, show)})"
            for p, show in ((ttft, seconds), (gap, milliseconds))
        ]
        price = count * task.config.cost.dollars_per_hour
        rows.append([task.cards(count), f"{price:.2f}", f"{task.slo.kept_share(run):.1%}", *felt])
    lab.table(
        "Each further card" if task.tensor_parallel_size == 1 else "Each further replica",
        ["cards", "$ per hour", "within the SLO", "TTFT p95, s (interval)", "TPOT p95, ms (interval)"],
        rows,
    )
    lab.record(around_the_plan=rows)


def the_router(lab: Lab, task: Task, plan: Plan) -> None:
    """Which replica? Conversations that come back, served by four rules."""
    lab.title("Which router?")
    if task.config.block_size == TRACE_BLOCK:
        traffic, config, n = task.traffic, task.config, max(2, plan.replicas)
        lab.say(f"The same trace and {n} replicas, and the router is another one each time.")
    else:
        n = 4
        traffic = conversations(40 if lab.quick else 200, 5, 0.5 * n, lab.seed)
        config = replace(task.config, enable_prefix_caching=True)
        lab.say(f"""{len(traffic)} requests of conversations: each turn's prompt is the whole conversation so far. {n} replicas,
            and the router is another one each time.""")
    found = {}
    for name, router in lab.progress(ROUTERS.items(), "one router after another"):
        run = serve_fleet(traffic, config, n, router())
        busiest = max(len(r.run.records) for r in run.replicas) / max(1, len(run.records))
        found[name] = (run.hit_rate, summarise(run.records).ttft.p95, busiest)
    slower = at_rate(
        traffic, (len(traffic) - 1) / traffic[-1].arrival / n
    )  # as much for one replica as each of them gets
    best = serve_fleet(slower, replace(config, num_blocks=n * config.num_blocks), 1, LeastLoaded()).hit_rate
    lab.predict(
        claim="prefix-router",
        question=f"hit rate of the prefix cache: the prefix-aware router finds so many times as much as round robin ({n} replicas)",
        predicted=float(n) if task.config.block_size != TRACE_BLOCK else 2.0,
        measured=found["prefix-aware"][0] / max(1e-9, found["round-robin"][0]),
        unit="x",
        tolerance=0.5,
        kind="timing",
        note="By chance the next turn of a conversation reaches the replica that has its prefix in one of as many cases as there are replicas.",
    )
    lab.table(
        "Four routers",
        ["router", "hit rate", "TTFT p95, s", "share of the busiest replica"],
        [[name, f"{hit:.1%}", ttft, f"{busiest:.0%}"] for name, (hit, ttft, busiest) in found.items()],
        note=f"One cache as large as all of them together would find {best:.1%}: no router finds more.",
    )
    lab.record(
        best_hit_rate=best,
        routers={name: dict(zip(("hit_rate", "ttft_p95", "busiest"), row)) for name, row in found.items()},
    )


def conversations(users: int, turns: int, rate: float, seed: int) -> list[TrafficRequest]:
    """Conversations of `turns` requests; each prompt holds all earlier turns. `rate`: requests per second."""
    rng = np.random.default_rng([seed, 3])
    span = users * turns / rate
    requests, name = [], 0
    for _ in range(users):
        times = np.sort(rng.uniform(0, span, turns)).tolist()
        names: tuple[int, ...] = ()
        for time in times:
            more = int(rng.integers(12, 40))  # blocks of 16 tokens: the last answer, and a new question
            names += tuple(range(name, name + more))
            name += more
            requests.append(
                TrafficRequest(
                    time, len(names) * BLOCK_SIZE + 8, int(rng.integers(50, 200)), "talk", 0, names
                )
            )
    return sorted(requests, key=lambda r: r.arrival)
