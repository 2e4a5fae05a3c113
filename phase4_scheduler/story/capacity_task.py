"""What capacity_planner.py is to plan: the model, its cards, the traffic and the SLO."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.lab import Lab
from phase1_tokens_embeddings.weights import Card, ModelShape, find_card, find_precision, find_shape
from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.fleet import ReplicaConfig
from phase4_scheduler.simulator.parallel_cost import cost_on_cards
from phase4_scheduler.simulator.planning import (
    SLO,
    Load,
    Plan,
    efficiency_of,
    make_plan,
)
from phase4_scheduler.simulator.routers import ROUTERS, Router
from phase4_scheduler.simulator.traffic import TRACE_BLOCK, TrafficRequest, at_rate, draw_traffic, read_trace

BLOCK_SIZE = 16
LASTS = 3  # times the stay of a request on a busy replica: so long must the traffic last
MOST_REQUESTS = 20_000  # take minutes
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

    def at(self, efficiency: float) -> Task:
        """The same task at another efficiency of the cards."""
        bits = dict(precision=self.precision, kv_precision=self.kv_precision)
        cost = cost_on_cards(self.shape, self.card, self.tensor_parallel_size, efficiency=efficiency, **bits)
        return replace(self, efficiency=efficiency, config=replace(self.config, cost=cost))


def drawn(a: Namespace, n: int, rate: float, seed: int) -> list[TrafficRequest]:
    """Requests of the pattern, or of one length."""
    names = tuple(range(a.system_prompt // BLOCK_SIZE))
    isl, osl = a.prompt_tokens, a.answer_tokens
    return [
        replace(
            r,
            prompt_tokens=(isl or r.prompt_tokens) + a.system_prompt,
            output_tokens=osl or r.output_tokens,
            hash_ids=names,
        )
        for r in draw_traffic(a.pattern, n, rate, a.burstiness, seed)
    ]


def recorded(lab: Lab, n: int) -> list[TrafficRequest]:
    """The first `n` requests of the trace."""
    a = lab.args
    for option, without in (
        ("system_prompt", 0),
        ("burstiness", 1),
        ("prompt_tokens", None),
        ("answer_tokens", None),
    ):
        if getattr(a, option) != without:
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
    lasting = LASTS * task.load.stay
    if not (a.trace or a.requests):
        needed = math.ceil(rate * lasting)
        if needed > MOST_REQUESTS:
            raise LabError(
                f"{needed:,} requests would have to be simulated to fill a fleet for {rate:,.6g} per second: plan for a part of "
                "--rate, and build as many such fleets, each with a router of its own"
            )
        return task if needed <= n else replace(task, traffic=drawn(a, needed, rate, lab.seed))
    if traffic[-1].arrival < lasting:
        lab.say(f"""Careful: this traffic lasts {traffic[-1].arrival:.0f} s, and a request on a busy replica stays
            {task.load.stay:.0f} s: it is over before a fleet fills up. Simulate more of it (--requests).""")
    return task
