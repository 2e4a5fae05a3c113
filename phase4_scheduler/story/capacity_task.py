"""What capacity_planner.py is to plan: the model, its cards, the traffic and the SLO."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.lab import Lab
from phase1_tokens_embeddings.weights import CARDS, Card, ModelShape, find_card, find_precision, find_shape
from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.fleet import ReplicaConfig
from phase4_scheduler.simulator.parallel_cost import cost_on_cards
from phase4_scheduler.simulator.planning import SLO, Plan, alone, make_plan, why_impossible
from phase4_scheduler.simulator.routers import ROUTERS, Router
from phase4_scheduler.simulator.trace_files import read_trace
from phase4_scheduler.simulator.traffic import TRACE_BLOCK, TrafficRequest, at_rate, draw_traffic

BLOCK_SIZE = 16
LASTS = 5  # times the stay of a request alone: so long must the traffic last
SHARED_BY = (1, 2, 4, 8)  # cards that share a model: all-reduces of these were recorded


@dataclass(frozen=True)
class Task:
    """What is to be planned."""

    shape: ModelShape
    card: Card
    precision: str
    traffic: list[TrafficRequest]
    slo: SLO
    config: ReplicaConfig
    router: str
    efficiency: float
    most: int  # cards
    tensor_parallel_size: int  # cards of a replica
    longest: float  # seconds that the longest request takes if it is alone
    cells: int = 1  # fleets side by side, each for its part of the traffic: one of them is planned

    @property
    def make_router(self) -> Callable[[], Router]:
        return ROUTERS[self.router]

    def plan(self, start: int = 1, **watch: Any) -> Plan:
        """`start`: cards. `watch`: see `make_plan`."""
        n, dollars = self.tensor_parallel_size, self.config.cost.dollars_per_hour
        most, first = max(1, self.most // n), max(1, start // n)
        return make_plan(self.traffic, self.config, self.slo, self.make_router, dollars, most, first, **watch)

    def cards(self, replicas: int) -> int:
        return replicas * self.tensor_parallel_size

    def what_forbids(self) -> str:
        """The limit that forbids the SLO whatever the number of replicas; "" if none does."""
        return why_impossible(self.traffic, self.config, self.slo)

    def on(self, **changes: Any) -> Task:
        """The same task with another `card`, `precision` or `tensor_parallel_size`."""
        new = replace(self, **changes)
        cost = cost_on_cards(new.shape, new.card, new.tensor_parallel_size, new.precision, new.efficiency)
        blocks = cost.num_blocks * BLOCK_SIZE // self.config.block_size
        return replace(new, config=replace(self.config, cost=cost, num_blocks=blocks))

    def with_chunks(self, tokens: int) -> Task:
        scheduler = replace(self.config.scheduler, max_num_batched_tokens=tokens)
        return replace(self, config=replace(self.config, scheduler=scheduler))

    def with_caching(self, on: bool) -> Task:
        return replace(self, config=replace(self.config, enable_prefix_caching=on))


def drawn(lab: Lab, n: int, rate: float) -> list[TrafficRequest]:
    """Requests of the pattern."""
    a = lab.args
    names = tuple(range(a.system_prompt // BLOCK_SIZE))
    traffic = draw_traffic(a.pattern, n, rate, a.burstiness, lab.seed)
    return [replace(r, prompt_tokens=r.prompt_tokens + a.system_prompt, hash_ids=names) for r in traffic]


def the_traffic(lab: Lab) -> list[TrafficRequest]:
    a = lab.args
    n = a.requests or (250 if lab.quick else 600)
    if a.trace is None:
        return drawn(lab, n, a.rate or 4)
    if a.system_prompt:
        raise LabError("--system-prompt is for a --pattern: a trace says itself what its prompts share")
    if a.burstiness != 1:
        raise LabError("--burstiness is for a --pattern: a trace says itself when its requests come")
    trace = read_trace(a.trace)
    traffic = trace[:n]
    span = traffic[-1].arrival
    if span <= 0:
        more = len(trace) > n
        raise LabError(
            f"{a.trace}: its first {n} requests all come at once: --requests takes more"
            if more
            else f"{a.trace} holds no requests at different times: a plan needs traffic that lasts a while"
        )
    lab.say(f"{a.trace}: the first {len(traffic):,} of {len(trace):,} requests, {span:,.0f} s.")
    gap = float(np.diff([r.arrival for r in traffic]).max())
    if gap > span / 4:
        lab.say(f"""For {gap:,.0f} s of these {span:,.0f} no request comes. The plan is for the traffic as it is, its silence
            included: the dollars for a million tokens count the idle time.""")
    return at_rate(traffic, a.rate) if a.rate else traffic


def the_task(lab: Lab) -> Task:
    a = lab.args
    shape, card, precision = find_shape(a.model), find_card(a.card), find_precision(a.precision)
    card = replace(card, dollars_per_hour=a.price or card.dollars_per_hour)
    cost = cost_on_cards(shape, card, a.tensor_parallel_size, precision, a.efficiency)
    if a.most < a.tensor_parallel_size:
        raise LabError(f"--most {a.most} cards: one replica alone takes {a.tensor_parallel_size}")
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
    slo = SLO(a.ttft_slo, a.tpot_slo, a.share)
    stays = [ttft + gap * r.output_tokens for r in traffic for ttft, gap in [alone(r, config)]]
    stay = float(np.median(stays))
    cells = 1
    if a.trace is None and a.requests is None:
        # The traffic must last long enough for the fleet to fill up.
        cells = math.ceil(LASTS * stay * (a.rate or 4) / len(traffic))
        traffic = drawn(lab, len(traffic), (a.rate or 4) / cells)
    rate = (len(traffic) - 1) / traffic[-1].arrival
    if cells > 1:
        lab.say(f"""{a.rate or 4:,.6g} requests a second are too many for one simulation. So they go to {cells:,} equal fleets side by
            side, each with a router of its own ("cells"), and one of them is planned here.""")
    price = "" if a.price else " (a rough price: --price takes yours)"
    lab.say(f"""{cost.describe()}, ${cost.dollars_per_hour:.2f} an hour{price}, room for {config.num_blocks * block:,} tokens of KV
        cache. {rate:.3g} requests a second, {np.mean([r.prompt_tokens for r in traffic]):,.0f} prompt tokens and
        {np.mean([r.output_tokens for r in traffic]):,.0f} answer tokens on average. SLO: first token within
        {a.ttft_slo:g} s and a mean gap of {1000 * a.tpot_slo:g} ms, for {a.share:.0%} of the requests.""")
    if traffic[-1].arrival < 0.8 * LASTS * stay:
        lab.say(f"""Careful: this traffic lasts {traffic[-1].arrival:.0f} s, and one request alone stays {stay:.0f} s. The fleet
            hardly fills up before it is over, so the plan will be too small. Simulate more (--requests).""")
    task = Task(
        shape,
        card,
        precision,
        traffic,
        slo,
        config,
        a.router,
        a.efficiency,
        a.most,
        a.tensor_parallel_size,
        max(stays),
        cells,
    )
    if limit := task.what_forbids():
        ways = ", ".join(ways_out(task))
        raise LabError(
            f"no number of replicas meets this SLO. What forbids it is {limit}"
            + (f". Each of these would bring it within reach: {ways}" if ways else "")
        )
    if traffic[-1].arrival < stay:
        raise LabError(
            f"this traffic lasts {traffic[-1].arrival:.3g} s, and one request alone stays {stay:.3g} s: it is over before a fleet "
            "fills up. Simulate more of it (--requests), or a lower --rate"
        )
    return task


def ways_out(task: Task) -> Iterator[str]:
    """For an SLO that no number of replicas meets: of each kind of lever the first option with which an idle replica could."""
    cards = sorted(CARDS.values(), key=lambda card: card.dollars_per_hour)
    sizes = [n for n in SHARED_BY if task.tensor_parallel_size < n <= task.most]
    for kind in (
        [(f"--precision {p}", dict(precision=p)) for p in ("FP8", "Q4_K_M")],
        [(f"--tensor-parallel-size {n}", dict(tensor_parallel_size=n)) for n in sizes],
        [(f"--card {card.name}", dict(card=card)) for card in cards],
    ):
        for option, change in kind:
            with suppress(LabError):  # too small for the model, or heads that cannot be dealt out
                if not task.on(**change).what_forbids():
                    yield option
                    break
