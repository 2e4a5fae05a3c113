"""The chapters of scaling_strategies.py, and its figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import merge
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.figures import INK, ORANGE, new_figure
from labkit.lab import Lab
from phase1_tokens_embeddings.weights import find_card, find_shape
from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.cost_model import StepSize
from phase4_scheduler.simulator.fleet import (
    Autoscaler,
    FleetRun,
    ReplicaConfig,
    daily,
    later,
    serve_autoscaled,
    serve_fleet,
    serve_replicas,
)
from phase4_scheduler.simulator.latency import summarise
from phase4_scheduler.simulator.parallel_cost import cost_on_cards
from phase4_scheduler.simulator.planning import ENOUGH, SLO, binding_limit, efficiency_of
from phase4_scheduler.simulator.routers import ROUTERS, LeastLoaded, LeastPerSpeed, PrefixAware
from phase4_scheduler.simulator.tiers import Tier, TieredReplica
from phase4_scheduler.simulator.traffic import TRACE_BLOCK, TrafficRequest, draw_traffic
from phase4_scheduler.simulator.virtual_time import ClockedEngine
from phase4_scheduler.story.capacity_story import conversations
from phase4_scheduler.story.capacity_task import BLOCK_SIZE

CARDS_THERE = 4
A_DAY = 1.0  # requests per second on average
LOAD = 0.7  # share of a replica's highest throughput above which tokens per second ask for another one
DAY_SLO = SLO(2.0, 0.1)


@dataclass(frozen=True)
class Fleet:
    """What serves, and with which settings."""

    model: str
    card: str
    precision: str = "FP16"
    max_num_seqs: int = 256
    chunk: int = 2048
    replicas: int = CARDS_THERE
    cards_each: int = 1
    router: str = "least-loaded"

    @property
    def config(self) -> ReplicaConfig:
        shape, card = find_shape(self.model), find_card(self.card)
        cost = cost_on_cards(
            shape, card, self.cards_each, precision=self.precision, efficiency=efficiency_of(card)
        )
        limits = SchedulerConfig(
            max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.chunk, max_model_len=cost.max_context
        )
        return ReplicaConfig(cost, limits, cost.num_blocks, BLOCK_SIZE)

    def serve(self, traffic: list[TrafficRequest]) -> FleetRun:
        return serve_fleet(traffic, self.config, self.replicas, ROUTERS[self.router]())


REMEDIES: dict[str, Callable[[Fleet], dict[str, Any]]] = {  # what each changes
    "unchanged": lambda fleet: {},
    "one more GPU": lambda fleet: dict(replicas=fleet.replicas + 1),
    "4 x max_num_seqs": lambda fleet: dict(max_num_seqs=4 * fleet.max_num_seqs),
    "chunks of 512": lambda fleet: dict(chunk=512),
    "8-bit weights": lambda fleet: dict(precision="FP8"),
    "2 GPUs per replica": lambda fleet: dict(replicas=fleet.replicas // 2, cards_each=2),
    "prefix-aware router": lambda fleet: dict(router="prefix-aware"),
}


@dataclass(frozen=True)
class Case:
    """One row of the table: a kind of traffic, the remedy that is recommended for it, and its SLO."""

    name: str
    remedy: str
    slo: SLO
    fleet: Fleet
    traffic: list[TrafficRequest]

    def kept(self, remedy: str) -> tuple[float, str]:
        """Share of the requests within the SLO, and what limits the fleet."""
        run = replace(self.fleet, **REMEDIES[remedy](self.fleet)).serve(self.traffic)
        return self.slo.kept_share(run), binding_limit(run, self.slo)


def the_cases(lab: Lab) -> list[Case]:
    fleet = Fleet(lab.args.model, lab.args.card)
    few, many = (150, 300) if lab.quick else (300, 600)  # the caches of the others take 300 to fill
    usual, patient = SLO(2.0, 0.1), SLO(5.0, 0.2)

    seed = lab.seed
    return [
        Case("many short chats", "4 x max_num_seqs", usual, replace(fleet, max_num_seqs=32), draw_traffic("chat", many, 9.0, seed=seed)),
        Case("long prompts", "chunks of 512", usual, fleet, draw_traffic("summarisation", few, 2.8, seed=seed)),
        Case("long answers", "8-bit weights", usual, fleet, draw_traffic("code", 300, 2.8, seed=seed)),
        Case(
            "repeated conversations", "prefix-aware router", usual, fleet,
            conversations(75, 5, 8.0, lab.seed),
        ),
        Case("bursts", "one more GPU", patient, fleet, draw_traffic("summarisation", 2 * few // 3, 1.6, 0.05, seed)),
    ]  # fmt: skip


def the_matrix(lab: Lab, cases: list[Case]) -> None:
    """Each remedy on each kind of traffic; with --quick only the one that is recommended, and 8-bit weights."""
    lab.title("Five kinds of traffic on four cards")
    card = find_card(lab.args.card)
    lab.say(f"""{CARDS_THERE} x {card.title}, {lab.args.model}, in virtual time. The SLO: 95 of 100 requests get their first
        token within 2 s and the others 0.1 s apart (bursts: 5 s and 0.2 s). The short chats meet a fleet with 32 sequences a
        replica, all others one with 256.""")
    kept: dict[str, dict[str, float]] = {}
    limits = {}
    todo = [
        (case, remedy)
        for case in cases
        for remedy in REMEDIES
        if not lab.quick or remedy in ("unchanged", case.remedy, "8-bit weights")
    ]
    for case, remedy in lab.progress(todo, "one remedy after another"):
        share, limit = case.kept(remedy)
        kept.setdefault(case.name, {})[remedy] = share
        limits.setdefault(case.name, limit)
    for case in cases:
        share = kept[case.name]
        lab.predict(
            claim="scaling-table",
            question=f"{case.name}: does the recommended remedy ({case.remedy}) alone meet the SLO?",
            predicted=True,
            measured=share[case.remedy] >= case.slo.share,
            kind="timing",
            note=f"{share['unchanged']:.0%} of the requests were within the SLO before, {share[case.remedy]:.0%} with it. What "
            f"broke: {limits[case.name]}.",
        )
    lab.predict(
        claim="one-remedy-for-all",
        question="of these five kinds of traffic, how many do 8-bit weights alone cure?",
        predicted=5,
        measured=sum(kept[case.name]["8-bit weights"] >= case.slo.share for case in cases),
        kind="timing",
        note="Half the bytes of weights are read sooner, and what they leave free is cache. So a step is shorter, and more requests "
        "fit. What it costs in quality, phase 2 measures.",
    )
    tried = [name for name in REMEDIES if any(name in of for of in kept.values())]
    shared = "2 GPUs per replica: the same four GPUs, two share each of two replicas (tensor parallelism). "
    lab.table(
        "Requests within the SLO",
        ["", *kept],
        [[name, *[percent(of.get(name)) for of in kept.values()]] for name in tried],
        note=f"{'' if lab.quick else shared}Only one more GPU costs money, about ${card.dollars_per_hour:.2f} per hour.",
    )
    lab.record(kept=kept, limits=limits)
    if not lab.quick:
        lab.figure(draw_matrix(cases, kept), "scaling_strategies")


def a_day(lab: Lab, trace: list[TrafficRequest]) -> None:
    """Fleets of a fixed size and fleets that follow a metric; then regions and models that share cards."""
    lab.title("A day with a quiet night")
    config = Fleet(lab.args.model, lab.args.card).config
    base = trace or draw_traffic("chat", 2000, 1.0, seed=lab.seed)
    base = [replace(r, kind="", hash_ids=()) for r in base]
    full = config.serve([replace(r, arrival=0.0) for r in base[:ENOUGH]])
    # Not `saturated_rate`: the autoscaler's metric counts tokens that are computed again after a preemption, too. On an L4 that is 1%
    # more for the Azure trace, 18% more for our own chats.
    most = full.tokens / sum(full.durations)
    day, third = daily(base, A_DAY), daily(base, A_DAY / 3)
    world = list(merge(*(later(third, hours) for hours in (0, 8, 16)), key=lambda r: r.arrival))
    twelve = [replace(r, kind="other") for r in later(day, 12)]
    both = list(merge(day, twelve, key=lambda r: r.arrival))
    lab.say(f"""{len(day):,} requests; at noon their rate is 1.8 times its mean, at midnight 0.2 times. An autoscaler looks every 15 s. It
        wants a replica for each 5 requests that wait, or for each {LOAD * most:,.0f} tokens computed per second: {LOAD:.0%} of what
        one replica reaches. Each new replica serves after its cold start. If the last 5 minutes wanted fewer, replicas leave.""")
    by_tokens = Autoscaler(metric="tokens", target=LOAD * most)
    one, two = {"": config}, {"": config, "other": config}
    fleets = [(f"{n} replicas", day, one, fixed(n)) for n in (2, 3)]
    fleets += [
        (f"by {name}, cold start {seconds} s", day, one, replace(scaler, cold_start=seconds))
        for name, scaler in (("the queue", Autoscaler()), ("tokens per second", by_tokens))
        for seconds in (30, 120, 600)
    ]
    fleets += [
        ("three regions, one of them: 1 replica", third, one, fixed(1)),
        ("three regions, one fleet: 2 replicas", world, one, fixed(2)),
        ("two models, 2 replicas each", both, two, fixed(2)),
        ("two models share 3 GPUs, by tokens", both, two, replace(by_tokens, most=3)),
    ]
    rows = []
    for name, requests, models, scaler in lab.progress(fleets, "one fleet after another"):
        run, paid = serve_autoscaled(requests, models, scaler)
        hours = sum(end - start for start, end in paid) / 3600
        peak = max(sum(start <= t < end for start, end in paid) for t, _ in paid)
        kept = sum(r.meets(DAY_SLO.ttft, DAY_SLO.tpot) for r in run.records) / len(requests)
        rows.append([name, peak, hours, hours * config.cost.dollars_per_hour, f"{kept:.1%}"])
    lab.table(
        f"Within an SLO of {DAY_SLO.ttft:g} s to the first token and {DAY_SLO.tpot:g} s between tokens",
        ["fleet", "most replicas", "replica hours", "$ per day", "within the SLO"],
        rows,
        note="Regions: a third of the requests each, 8 hours apart. Models: a day each, 12 hours apart.",
    )
    lab.record(day=rows)


def fixed(replicas: int) -> Autoscaler:
    return Autoscaler(fewest=replicas, most=replicas)


def old_prefixes(lab: Lab, trace: list[TrafficRequest]) -> None:
    """Conversations that come back, and where their keys and values wait meanwhile."""
    lab.title("Levels of KV memory")
    config = Fleet(lab.args.model, lab.args.card).config
    cost, chunk = config.cost, config.scheduler.max_num_batched_tokens
    traffic, sizes = conversations(120 if lab.quick else 400, 5, 8.0, lab.seed), (16, 1000)
    if named := [r for r in trace if r.hash_ids]:
        num_blocks = config.num_blocks * BLOCK_SIZE // TRACE_BLOCK
        config = replace(config, block_size=TRACE_BLOCK, num_blocks=num_blocks)
        traffic, sizes = named, (256, 4000)
    per_token = cost.seconds(StepSize.of([(0, chunk)])) / chunk
    lab.say(f"""{len(traffic):,} requests, {CARDS_THERE} replicas. Computing a prompt takes {1e6 * per_token:.0f} µs per token, and a
        token's keys and values are {cost.kv_bytes:,} bytes: loading them pays from {cost.kv_bytes / per_token / 1e9:.1f} GB/s on.""")

    def stacks(*names: str) -> list[list[Tier]]:
        store = Tier("store", 10_000, 3.0)
        made = {
            "main memory": lambda: Tier("main memory", sizes[0], 50.0),
            "SSD": lambda: Tier("SSD", sizes[1], 6.0),
            "store": lambda: store,
        }
        return [[made[name]() for name in names] for _ in range(CARDS_THERE)]

    levels = {
        "the GPU's cache": (),
        f"and main memory, {sizes[0]} GB at 50 GB/s": ("main memory",),
        f"and an SSD, {sizes[1]:,} GB at 6 GB/s": ("main memory", "SSD"),
        "or one store for all, 3 GB/s": ("main memory", "store"),
    }
    rows = []
    for title, names in lab.progress(levels.items(), "one level after another"):
        rows.append([title])
        for router in (LeastLoaded(), PrefixAware()):
            replicas = [TieredReplica.over(config, tiers, cost.kv_bytes) for tiers in stacks(*names)]
            run = serve_replicas(traffic, replicas, router)
            rows[-1] += [f"{run.hit_rate:.1%}", summarise(run.records).ttft.mean]
    lab.table(
        "Prompt tokens that are found, and mean TTFT in seconds",
        ["levels", "least loaded", "TTFT", "prefix-aware", "TTFT"],
        rows,
    )
    lab.record(levels=rows)


def mixed_cards(lab: Lab) -> None:
    """Slow cards beside a fast one: more arithmetic, and perhaps fewer requests within the SLO."""
    lab.title("Cards of two kinds")
    slo, traffic = SLO(2.0, 0.1), draw_traffic("code", 500 if lab.quick else 1500, 12.0, seed=lab.seed)
    fleets = {card: Fleet("llama-3-8b", card).config for card in ("h100", "l4")}
    speeds = [find_card(card).bandwidth_gb_s for card in ("h100", *CARDS_THERE * ["l4"])]
    kept = {}
    for name, number, router in (
        ("the H100 alone", 1, LeastLoaded()),
        (f"and {CARDS_THERE} L4, to the least loaded", 1 + CARDS_THERE, LeastLoaded()),
        (f"and {CARDS_THERE} L4, to the least loaded per bandwidth", 1 + CARDS_THERE, LeastPerSpeed(speeds)),
    ):
        replicas = [ClockedEngine.made_from(fleets["l4" if i else "h100"]) for i in range(number)]
        kept[name] = slo.kept_share(serve_replicas(traffic, replicas, router))
    alone, by_number, by_speed = kept.values()
    lab.predict(
        claim="mixed-cards",
        question=f"an H100 gets {CARDS_THERE} L4 beside it, and a router that sends each request to the least loaded: are more "
        "requests within the SLO?",
        predicted=True,
        measured=by_number > alone,
        kind="timing",
        note=f"{alone:.0%} before, {by_number:.0%} with them: an L4 with as many requests as the H100 has takes 11 times as long. "
        f"Counted per bandwidth: {by_speed:.0%}.",
    )
    lab.table(
        "Llama-3 8B, code, 12 requests/s",
        ["fleet", "within the SLO"],
        [[name, percent(share)] for name, share in kept.items()],
    )
    lab.record(mixed=kept)


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def draw_matrix(cases: list[Case], kept: dict[str, dict[str, float]]) -> Figure:
    cured = sum(kept[case.name][case.remedy] >= case.slo.share for case in cases)
    fig, [ax] = new_figure(
        f"The recommended lever suffices for {cured} of {len(cases)} kinds of traffic; others suffice as well",
        f"Requests within the SLO, % ({100 * cases[0].slo.share:.0f} suffice; orange frame: recommended). {cases[0].fleet.model} on {CARDS_THERE} x "
        f"{find_card(cases[0].fleet.card).title}, in virtual time",
        size=(7.2, 5.6),
    )
    values = [[100 * kept[case.name][name] for name in REMEDIES] for case in cases]
    ax.imshow(values, cmap="Blues", vmin=0, vmax=115, aspect="auto")
    ax.grid(visible=False)
    ax.set_xticks(range(len(REMEDIES)), list(REMEDIES), rotation=30, ha="right")
    ax.set_yticks(range(len(cases)), [case.name for case in cases])
    for y, (case, row) in enumerate(zip(cases, values, strict=True)):
        for x, (name, value) in enumerate(zip(REMEDIES, row, strict=True)):
            color = "white" if value > 85 else INK
            ax.text(x, y, f"{value:.0f}", ha="center", va="center", color=color, fontsize=11)
            if name == case.remedy:
                ax.add_patch(Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, fill=False, edgecolor=ORANGE, lw=2.6))
    ax.set(xlabel="lever", ylabel="traffic")
    return fig
