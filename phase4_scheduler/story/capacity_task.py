"""What capacity_planner.py is to plan: the model, its cards, the traffic and the SLO."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.lab import Lab
from phase1_tokens_embeddings.weights import CARDS, Card, ModelShape, find_card, find_precision, find_shape
from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.fleet import ReplicaConfig
from phase4_scheduler.simulator.parallel_cost import cost_on_cards
from phase4_scheduler.simulator.planning import SLO, Load, Plan, efficiency_of, make_plan, why_impossible
from phase4_scheduler.simulator.routers import ROUTERS, Router
from phase4_scheduler.simulator.traffic import TRACE_BLOCK, TrafficRequest, at_rate, draw_traffic, read_trace

BLOCK_SIZE = 16
LASTS = 3  # times the stay of a request on a busy replica: so long must the traffic last
CELL = 3  # replicas that one cell keeps busy at least
SHARED_BY = (1, 2, 4, 8)  # cards that share a model: all-reduces of these were recorded


@dataclass(frozen=True)
class Task:
    """What is to be planned."""

    shape: ModelShape
    card: Card
    precision: str  # of the weights
    kv_precision: str
    traffic: list[TrafficRequest]
    slo: SLO
    config: ReplicaConfig
    router: str
    efficiency: float
    most: int  # cards
    tensor_parallel_size: int  # cards of a replica
    cells: int = 1  # fleets side by side, each for its part of the traffic: one of them is planned

    @property
    def make_router(self) -> Callable[[], Router]:
        return ROUTERS[self.router]

    @cached_property
    def load(self) -> Load:
        return Load.of(self.traffic, self.config)

    @property
    def least(self) -> int:
        """The fewest replicas that keep up with the traffic."""
        return max(1, math.ceil(self.load.replicas - 1e-9))

    def plan(self, most: int | None = None, **watch: Any) -> Plan:
        """`most`: replicas. `watch`: see `make_plan`."""
        n, dollars = self.tensor_parallel_size, self.config.cost.dollars_per_hour
        most = most or max(1, self.most // n)
        if self.least > most:
            raise LabError(
                f"more than {most} replicas would be needed: computing alone keeps {self.load.replicas:,.1f} of them busy"
            )
        return make_plan(
            self.traffic, self.config, self.slo, self.make_router, dollars, most, self.least, **watch
        )

    def cards(self, replicas: float) -> float:
        return replicas * self.tensor_parallel_size

    def what_forbids(self) -> str:
        """The limit that forbids the SLO whatever the number of replicas; "" if none does."""
        return why_impossible(self.traffic, self.config, self.slo)

    def on(self, chunk: int | None = None, **changes: Any) -> Task:
        """The same task with another `card`, `precision`, `tensor_parallel_size`, `efficiency` or size of the `chunk`s."""
        new = replace(self, **changes)
        bits = dict(precision=new.precision, kv_precision=new.kv_precision)
        cost = cost_on_cards(new.shape, new.card, new.tensor_parallel_size, efficiency=new.efficiency, **bits)
        blocks = cost.num_blocks * BLOCK_SIZE // self.config.block_size
        scheduler = self.config.scheduler
        scheduler = replace(scheduler, max_num_batched_tokens=chunk or scheduler.max_num_batched_tokens)
        return replace(new, config=replace(self.config, cost=cost, num_blocks=blocks, scheduler=scheduler))


def drawn(a: Namespace, n: int, rate: float, seed: int) -> list[TrafficRequest]:
    """Requests of the pattern, or of one length."""
    names = tuple(range(a.system_prompt // BLOCK_SIZE))
    traffic = draw_traffic(a.pattern, n, rate, a.burstiness, seed)
    isl, osl = a.prompt_tokens, a.answer_tokens
    traffic = [
        replace(r, prompt_tokens=isl or r.prompt_tokens, output_tokens=osl or r.output_tokens)
        for r in traffic
    ]
    return [replace(r, prompt_tokens=r.prompt_tokens + a.system_prompt, hash_ids=names) for r in traffic]


def recorded(lab: Lab, n: int) -> list[TrafficRequest]:
    """The first `n` requests of the trace."""
    a = lab.args
    without = dict(system_prompt=0, burstiness=1, prompt_tokens=None, answer_tokens=None)
    for option, default in without.items():
        if getattr(a, option) != default:
            raise LabError(
                f"--{option.replace('_', '-')} is for a --pattern: a trace says itself what comes, and when"
            )
    trace = read_trace(a.trace)
    traffic = trace[:n]
    span = traffic[-1].arrival
    if span <= 0:
        raise LabError(
            f"{a.trace}: its first {n} requests all come at once: --requests takes more"
            if len(trace) > n
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
    bits = dict(precision=precision, kv_precision=a.kv_precision)
    efficiency = a.efficiency or efficiency_of(card)
    cost = cost_on_cards(shape, card, a.tensor_parallel_size, efficiency=efficiency, **bits)
    if a.most < a.tensor_parallel_size:
        raise LabError(f"--most {a.most} cards: one replica alone takes {a.tensor_parallel_size}")
    lab.title("The task")
    n, rate = a.requests or (250 if lab.quick else 600), a.rate or 4
    traffic = recorded(lab, n) if a.trace else drawn(a, n, rate, lab.seed)
    shared = any(r.hash_ids for r in traffic)  # without shared blocks a prefix cache has nothing to find
    block = TRACE_BLOCK if a.trace and shared else BLOCK_SIZE
    scheduler = SchedulerConfig(
        max_num_seqs=a.max_num_seqs,
        max_num_batched_tokens=a.max_num_batched_tokens,
        max_model_len=cost.max_context,
    )
    config = ReplicaConfig(cost, scheduler, cost.num_blocks * BLOCK_SIZE // block, block, shared)
    slo = SLO(a.ttft_slo, a.tpot_slo, a.share)
    task = Task(
        shape, card, precision, a.kv_precision, traffic, slo, config, a.router, efficiency, a.most, a.tensor_parallel_size
    )  # fmt: skip
    price = "" if a.price else " (a rough price: --price takes yours)"
    lab.say(f"""{cost.describe()}, ${cost.dollars_per_hour:.2f} per hour{price}, room for {config.num_blocks * block:,} tokens of KV
        cache. {task.load.rate:.3g} requests per second, {np.mean([r.prompt_tokens for r in traffic]):,.0f} prompt tokens and
        {np.mean([r.output_tokens for r in traffic]):,.0f} answer tokens on average. SLO: first token within
        {a.ttft_slo:g} s and a mean gap of {1000 * a.tpot_slo:g} ms, for {a.share:.0%} of the requests.""")
    if limit := task.what_forbids():
        ways = ", ".join(ways_out(task))
        raise LabError(
            f"no number of replicas meets this SLO. What forbids it is {limit}"
            + (f". Each of these would bring it within reach: {ways}" if ways else "")
        )
    lasting = LASTS * task.load.stay
    if not (a.trace or a.requests):
        return in_cells(lab, task, rate, lasting)
    if traffic[-1].arrival < lasting:
        lab.say(f"""Careful: this traffic lasts {traffic[-1].arrival:.0f} s, and a request on a busy replica stays
            {task.load.stay:.0f} s: it is over before a fleet fills up. Simulate more of it (--requests).""")
    return task


def in_cells(lab: Lab, task: Task, rate: float, lasting: float) -> Task:
    """The traffic must last long enough for the fleet to fill up. Where that takes too many requests for one simulation, they
    go to equal fleets side by side ("cells"), each with a router of its own."""
    needed = rate * lasting  # requests
    simulated = min(needed, max(len(task.traffic), CELL * task.load.most * lasting))
    if needed <= len(task.traffic):
        return task
    cells = math.ceil(needed / simulated)
    if cells > 1:
        lab.say(f"""{rate:,.6g} requests per second are too many for one simulation. So they go to {cells:,} equal fleets side by
            side, each with a router of its own ("cells"), and one of them is planned here.""")
    if simulated > 1000:
        lab.say(f"""Each fleet is tried with {simulated:,.0f} requests, so that it fills up. --requests 600 takes less time, and is less
            certain.""")
    return replace(task, traffic=drawn(lab.args, math.ceil(simulated), rate / cells, lab.seed), cells=cells)


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
