"""The chapters of capacity_planner.py, and its figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from labkit.errors import LabError
from labkit.figures import BLUE, GREEN, GREY, INK, ORANGE, RED, new_figure
from labkit.lab import Lab
from phase1_tokens_embeddings.weights import CARDS, Card, ModelShape, find_card, find_precision, find_shape
from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.cost_model import ComputedCost
from phase4_scheduler.simulator.fleet import ReplicaConfig, serve_fleet
from phase4_scheduler.simulator.latency import summarise
from phase4_scheduler.simulator.planning import (
    Estimate,
    Plan,
    Promise,
    alone,
    make_plan,
    p95,
    settled,
)
from phase4_scheduler.simulator.routers import ROUTERS, Router
from phase4_scheduler.simulator.trace_files import read_trace
from phase4_scheduler.simulator.traffic import TRACE_BLOCK, TrafficRequest, at_rate, draw_traffic

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Task:
    """What is to be planned."""

    shape: ModelShape
    card: Card
    precision: str
    traffic: list[TrafficRequest]
    promise: Promise
    config: ReplicaConfig
    router: str
    efficiency: float
    most: int

    @property
    def make_router(self) -> Callable[[], Router]:
        return ROUTERS[self.router]

    def plan(self, start: int = 1) -> Plan:
        dollars = self.card.dollars_per_hour
        return make_plan(self.traffic, self.config, self.promise, self.make_router, dollars, self.most, start)

    def with_card(self, card: Card, precision: str) -> Task:
        """The same task for another card or other weights."""
        cost = ComputedCost.of(self.shape, card, precision, self.efficiency)
        blocks = cost.num_blocks * BLOCK_SIZE // self.config.block_size
        config = replace(self.config, cost=cost, num_blocks=blocks)
        return replace(self, card=card, precision=precision, config=config)

    def with_chunks(self, tokens: int) -> Task:
        scheduler = replace(self.config.scheduler, max_num_batched_tokens=tokens)
        return replace(self, config=replace(self.config, scheduler=scheduler))

    def with_caching(self, on: bool) -> Task:
        return replace(self, config=replace(self.config, enable_prefix_caching=on))


def the_traffic(lab: Lab) -> list[TrafficRequest]:
    a = lab.args
    n = a.requests or (150 if lab.quick else 600)
    if not a.trace:
        if a.skip_bad_lines:
            raise LabError("--skip-bad-lines is for --trace FILE: give one, or leave it out")
        traffic = draw_traffic(a.pattern, n, a.rate or 4, a.burstiness, lab.seed)
        names = tuple(range(a.system_prompt // BLOCK_SIZE))
        return [replace(r, prompt_tokens=r.prompt_tokens + a.system_prompt, hash_ids=names) for r in traffic]
    if a.system_prompt:
        raise LabError("--system-prompt is for a --pattern: a trace says itself what its prompts share")
    if a.burstiness != 1:
        raise LabError("--burstiness is for a --pattern: a trace says itself when its requests come")
    trace = read_trace(a.trace, a.skip_bad_lines)
    traffic = trace.requests[:n]
    span = traffic[-1].arrival
    if span <= 0:
        raise LabError(
            f"{a.trace}: its first {len(traffic)} requests all come at once; --requests takes more"
        )
    lab.say(f"""{a.trace}: {trace.format}, the first {len(traffic):,} of {len(trace.requests):,} requests, {span:,.0f} s.
        {trace.skipped:,} lines were skipped, {trace.unsorted:,} put in order.""")
    gap = float(np.diff([r.arrival for r in traffic]).max())
    if gap > span / 4:
        lab.say(f"""In {gap:,.0f} s of these {span:,.0f} nobody comes. The plan is for the traffic as it is, its silence
            included: the dollars for a million tokens count the idle time.""")
    return at_rate(traffic, a.rate) if a.rate else traffic


def the_task(lab: Lab) -> Task:
    a = lab.args
    shape, card, precision = find_shape(a.model), find_card(a.card), find_precision(a.precision)
    card = replace(card, dollars_per_hour=a.price or card.dollars_per_hour)
    cost = ComputedCost.of(shape, card, precision, a.efficiency)
    lab.title("The task")
    traffic = the_traffic(lab)
    block = TRACE_BLOCK if a.trace and any(r.hash_ids for r in traffic) else BLOCK_SIZE
    scheduler = SchedulerConfig(
        max_num_seqs=a.max_num_seqs,
        max_num_batched_tokens=a.max_num_batched_tokens,
        max_model_len=cost.max_context,
    )
    shared = any(r.hash_ids for r in traffic)  # without shared blocks a prefix cache has nothing to find
    config = ReplicaConfig(cost, scheduler, cost.num_blocks * BLOCK_SIZE // block, block, shared)
    promise = Promise(a.ttft_slo, a.tpot_slo, a.share)
    rate = (len(traffic) - 1) / traffic[-1].arrival
    lab.say(f"""{cost.describe()}, ${card.dollars_per_hour:.2f} an hour, room for {config.num_blocks * block:,} tokens of KV
        cache. {rate:.3g} requests a second, {np.mean([r.prompt_tokens for r in traffic]):,.0f} prompt tokens and
        {np.mean([r.output_tokens for r in traffic]):,.0f} answer tokens on average. The promise: first token within
        {a.ttft_slo:g} s and a mean gap of {1000 * a.tpot_slo:g} ms, for {a.share:.0%} of the requests.""")
    stay = float(
        np.median([ttft + gap * r.output_tokens for r in traffic for ttft, gap in [alone(r, config)]])
    )
    if traffic[-1].arrival < 5 * stay:
        lab.say(f"""Careful: this traffic lasts {traffic[-1].arrival:.0f} s, and one request alone stays {stay:.0f} s. The fleet
            hardly fills up before it is over, so the plan will be too small. Simulate more (--requests).""")
    return Task(shape, card, precision, traffic, promise, config, a.router, a.efficiency, a.most)


def the_plan(lab: Lab, task: Task) -> Plan:
    lab.title("The plan")
    one = serve_fleet(task.traffic, task.config, 1, task.make_router()).replicas[0]
    work = one.busy / task.traffic[-1].arrival
    plan = task.plan(max(1, math.ceil(work)))
    lab.predict(
        claim="cards-needed",
        question="cards that keep the promise (predicted: the computing time, over the time there is)",
        predicted=math.ceil(work),
        measured=plan.replicas,
        unit="cards",
        kind="timing",
        note=f"One card would compute for {work:.1f} seconds in each second of traffic. A promise costs cards beyond that: "
        "requests come in waves. (It can cost fewer: steps that more requests share are cheaper, "
        "and one drowning card shares them most.)",
    )
    percent, seconds, gap = "{:.1%}".format, "{:.2f} s".format, "{:.4f} s".format
    lab.table(
        f"{plan.replicas} x {task.card.title}",
        ["", "value", "95 of 100 such runs"],
        [
            ["requests within the promise", percent(plan.kept.value), show_interval(plan.kept, percent)],
            ["TTFT p95", seconds(plan.ttft.value), show_interval(plan.ttft, seconds)],
            ["TPOT p95", gap(plan.tpot.value), show_interval(plan.tpot, gap)],
            ["dollars an hour", f"{plan.dollars_per_hour:.2f}", ""],
            ["dollars for a million answer tokens", f"{plan.dollars_per_million:.2f}", ""],
            ["headroom: more traffic it takes", f"{plan.headroom:.0%}", ""],
            ["what breaks first", plan.limit, ""],
        ],
        note="Intervals: block bootstrap over 25 stretches of requests. They say what another draw of such traffic "
        "would change, not what is wrong with the clock.",
    )
    if plan.kept.low < task.promise.share:
        lab.say(f"""The interval reaches below the {task.promise.share:.0%} that were promised, so this is close. Before
            you sign, simulate more (--requests), or add a card.""")
    if refused := plan.run.refused:
        lab.say(f"""{len(refused):,} of {len(task.traffic):,} requests were refused, and count as broken promises. The first:
            {plan.run.refusal}.""")
    lab.record(plan=as_json(plan))
    return plan


def show_interval(estimate: Estimate, show: Any) -> str:
    return f"{show(estimate.low)} to {show(estimate.high)}"


def as_json(plan: Plan) -> dict[str, Any]:
    return {k: vars(v) if isinstance(v, Estimate) else v for k, v in vars(plan).items() if k != "run"}


def fewer_and_more(lab: Lab, task: Task, plan: Plan) -> None:
    """The picture for a manager: what each further card buys."""
    lab.title("What more or fewer cards would do")
    n = plan.replicas
    counts = sorted({max(1, n - 2), max(1, n - 1), n, n + 1, n + 2})
    rows, points = [], []
    for count in lab.progress(counts, "fleets around the plan"):
        run = plan.run if count == n else serve_fleet(task.traffic, task.config, count, task.make_router())
        ttft = Estimate.of([r.ttft for r in settled(run)], p95)
        kept = task.promise.kept_share(run)
        price = count * task.card.dollars_per_hour
        gap = Estimate.of([r.tpot for r in settled(run)], p95)
        points.append((count, ttft, gap, kept, price))
        rows.append(
            [count, price, f"{kept:.1%}", ttft.value, show_interval(ttft, "{:.2f}".format), 1000 * gap.value]
        )
    lab.table(
        "Each further card",
        ["cards", "$ an hour", "within the promise", "TTFT p95, s", "interval, s", "TPOT p95, ms"],
        rows,
    )
    lab.figure(draw_plan(points, task, plan), "capacity_plan")


def the_levers(lab: Lab, task: Task, plan: Plan) -> None:
    lab.title("The levers")
    lab.say(
        "Each by itself, everything else as planned. Answers may get worse with fewer bits: phase 2 measures that."
    )
    chunks = task.config.scheduler.max_num_batched_tokens
    names = ("h100",) if lab.quick else ("l4", "rtx4090", "a100-80", "h100")
    others = [CARDS[name] for name in names if name != task.card.name]
    levers: list[tuple[str, Any]] = [
        ("8-bit weights (FP8)", lambda: task.with_card(task.card, "FP8")),
        ("4-bit weights (Q4_K_M)", lambda: task.with_card(task.card, "Q4_K_M")),
        (f"chunks of {chunks // 4:,} tokens", lambda: task.with_chunks(max(1, chunks // 4))),
        (f"chunks of {4 * chunks:,} tokens", lambda: task.with_chunks(4 * chunks)),
    ]
    if any(r.hash_ids for r in task.traffic):
        levers.insert(2, ("no prefix caching", lambda: task.with_caching(False)))
    levers += [
        (f"on {card.title}", lambda card=card: task.with_card(card, task.precision)) for card in others
    ]
    rows = [row_of("as planned", plan)]
    for name, change in lab.progress(levers, "one lever after another"):
        try:
            other = change()
            rows.append(row_of(name, other.plan(plan.replicas)))
        except LabError as error:
            rows.append(
                [name, None, None, None, None, str(error).split("What forbids it is ")[-1].split(":")[0]]
            )
    lab.table(
        "What each lever is worth",
        ["", "cards", "$ an hour", "$ a million", "headroom", "breaks first, or what forbids it"],
        rows,
        note="$ a million: for a million tokens of answers. Tensor parallelism, one model over several cards, is not simulated.",
    )
    lab.record(
        levers=[
            dict(zip(("lever", "cards", "per_hour", "per_million", "headroom", "limit"), r)) for r in rows
        ]
    )


def row_of(name: str, plan: Plan) -> list[Any]:
    return [name, plan.replicas, plan.dollars_per_hour, plan.dollars_per_million, plan.headroom, plan.limit]


def the_router(lab: Lab, task: Task, plan: Plan) -> None:
    """Which replica? Conversations that come back, served by four rules."""
    lab.title("Who chooses the replica?")
    if task.config.block_size == TRACE_BLOCK:
        traffic, config, n = task.traffic, task.config, max(2, plan.replicas)
        lab.say(f"The same trace and {n} replicas, and the router is another one each time.")
    else:
        n = 4
        traffic = conversations(40 if lab.quick else 200, 5, 0.5 * n, lab.seed)
        config = task.with_caching(True).config
        lab.say(f"""{len(traffic)} requests of users who come back: each turn's prompt is the whole talk so far. {n} replicas,
            and the router is another one each time.""")
    found = {}
    for name, router in lab.progress(ROUTERS.items(), "one router after another"):
        run = serve_fleet(traffic, config, n, router())
        busiest = max(len(r.run.records) for r in run.replicas) / max(1, len(run.records))
        found[name] = (run.hit_rate, summarise(run.records).ttft.p95, busiest)
    lab.predict(
        claim="prefix-router",
        question=f"hit rate of the prefix cache: the prefix-aware router finds so many times as much as round robin ({n} replicas)",
        predicted=float(n) if task.config.block_size != TRACE_BLOCK else 2.0,
        measured=found["prefix-aware"][0] / max(1e-9, found["round-robin"][0]),
        unit="x",
        tolerance=0.5,
        kind="timing",
        note="By chance a talk's next turn comes to the replica that knows it once in as many times as there are replicas.",
    )
    lab.table(
        "Four routers",
        ["router", "hit rate", "TTFT p95, s", "share of the busiest replica"],
        [[name, f"{hit:.1%}", ttft, f"{busiest:.0%}"] for name, (hit, ttft, busiest) in found.items()],
    )
    lab.record(
        routers={name: dict(zip(("hit_rate", "ttft_p95", "busiest"), row)) for name, row in found.items()}
    )


def conversations(users: int, turns: int, rate: float, seed: int) -> list[TrafficRequest]:
    """Users who come `turns` times, each time with all that was said before. `rate` requests a second."""
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


Point = tuple[
    int, Estimate, Estimate, float, float
]  # cards, TTFT p95, TPOT p95, share within the promise, $ an hour


def draw_plan(points: Sequence[Point], task: Task, plan: Plan) -> Figure:
    """Both halves of the promise, as a share of what was promised, and the requests that saw both."""
    fig, (left, right) = new_figure(
        f"{plan.replicas} x {task.card.title} keep the promise: ${plan.dollars_per_hour:.2f} an hour, {plan.headroom:.0%} headroom",
        f"{task.config.cost.describe()}; beyond that: {plan.limit}",
        panels=2,
        size=(11.5, 4.4),
    )
    counts = [count for count, *_ in points]
    promised = (task.promise.ttft, task.promise.tpot)
    for i, (name, colour) in enumerate((("TTFT", BLUE), ("TPOT", ORANGE))):
        for count, *felt, _, _ in points:
            figure, at = felt[i], count + (0.08 if i else -0.08)
            span = [figure.low / promised[i], figure.high / promised[i]]
            left.plot([at, at], span, color=colour, linewidth=5, alpha=0.35, solid_capstyle="butt")
            label = f"{name} p95: {promised[i]:g} s promised" if count == counts[0] else None
            left.plot(at, figure.value / promised[i], "o", color=colour, label=label)
    left.axhline(1, color=RED, linestyle="--", linewidth=1.2)
    left.set(
        xlabel="cards", ylabel="simulated / promised (bar: 95 of 100 days)", ylim=(0, None), xticks=counts
    )
    left.legend()
    colours = [GREEN if count == plan.replicas else GREY for count in counts]
    right.bar(counts, [100 * kept for *_, kept, _ in points], color=colours, width=0.6)
    right.axhline(100 * task.promise.share, color=RED, linestyle="--", linewidth=1.2)
    for count, *_, kept, price in points:
        right.text(count, 100 * kept + 1, f"${price:.2f}/h", ha="center", color=INK)
    right.set(xlabel="cards", ylabel="requests within the promise, %", ylim=(0, 112), xticks=counts)
    return fig
