"""A fleet in virtual time: several schedulers, each with its own cache and its own clock, and one router in front.

Replicas know nothing of each other. They meet only where a request comes in: at that moment each has made all steps
that began before, and the router looks at how many requests are still in flight.

A prompt's blocks have the names that the trace gives them (its hash ids), in place of hashes of their tokens: two prompts share
exactly the blocks whose names they share.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.features.kv_events import KVEventBlockManager
from phase4_scheduler.simulator.latency import RequestRecord
from phase4_scheduler.simulator.routers import Router, least
from phase4_scheduler.simulator.traffic import TrafficRequest
from phase4_scheduler.simulator.virtual_time import ClockedEngine, ReplicaConfig, block_names


@dataclass
class FleetRun:
    """What happens, and at the end what happened.

    Attributes:
        records: finished requests, in the order of their arrivals.
        choices: the replica of each request that came.
        refused: arrivals of requests that could never fit, and why the first of them was refused.
    """

    replicas: list[ClockedEngine]
    records: list[RequestRecord] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    refusal: str = ""

    def advance(self, until: float) -> None:
        for replica in self.replicas:
            replica.advance(until)

    def give(self, request: TrafficRequest, number: int, chosen: int) -> None:
        """A request to one of the replicas."""
        self.choices.append(chosen)
        try:
            self.replicas[chosen].take(request, number)
        except ValueError as error:
            self.refused.append(request.arrival)
            self.refusal = self.refusal or str(error)

    def finish(self) -> Self:
        """Serve what is left."""
        self.advance(math.inf)
        records = (r for replica in self.replicas for r in replica.run.records)
        self.records = sorted(records, key=lambda r: r.arrival)
        return self

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that a prefix cache had already."""
        cached = sum(r.num_cached_tokens for r in self.records)
        return cached / max(1, sum(r.prompt_tokens for r in self.records))

    @property
    def waited(self) -> Counter[str]:
        return sum((replica.run.waited for replica in self.replicas), Counter())

    @property
    def decode_step(self) -> float:
        """Mean seconds of a step without a piece of a prompt in it; 0 if there was none."""
        steps = sum(replica.run.decode_steps for replica in self.replicas)
        return sum(replica.run.decode_seconds for replica in self.replicas) / steps if steps else 0.0


def serve_fleet(
    requests: Iterable[TrafficRequest], config: ReplicaConfig, num_replicas: int, router: Router
) -> FleetRun:
    """Serve all requests with `num_replicas` equal replicas, see `serve_replicas`."""
    manager = KVEventBlockManager if hasattr(router, "observe") else BlockManager
    return serve_replicas(
        requests, [ClockedEngine.made_from(config, manager) for _ in range(num_replicas)], router
    )


def serve_replicas(
    requests: Iterable[TrafficRequest], replicas: list[ClockedEngine], router: Router
) -> FleetRun:
    """Serve all requests.

    Args:
        requests: in the order of their arrivals.
        replicas: equal ones or different ones. For a router that observes, their block managers record KV events.

    The result depends on the arguments alone: the same seed, the same run.
    """
    observe, run = getattr(router, "observe", None), FleetRun(replicas)
    for number, request in enumerate(requests):
        run.advance(request.arrival)
        asked = request
        if observe:
            for i, replica in enumerate(run.replicas):
                observe(i, replica.scheduler.block_manager.take_kv_events())
            size = replicas[0].scheduler.block_manager.block_size
            asked = replace(request, hash_ids=block_names(request, size))
        loads = [replica.load(request.arrival) for replica in run.replicas]
        run.give(request, number, router.choose(asked, loads))
    return run.finish()


# ---------------------------------------------------------------------- fleets that grow and shrink

DAY = 86_400.0  # seconds


@dataclass(frozen=True)
class Autoscaler:
    """As KEDA and a HorizontalPodAutoscaler scale by a metric of vLLM: ceil(metric / target) replicas are wanted.

    Attributes:
        fewest: replicas of each model. most: replicas of all models together.
        metric: "waiting" requests (`vllm:num_requests_waiting`), or "tokens" computed per second (the sum of
            `vllm:iteration_tokens_total`). Of a full replica the second one grows no more, so its target must be lower.
        every: seconds between two looks. cold_start: seconds from a look until a replica it adds serves.
        window: replicas leave if more than any look of so many seconds wanted. They first end what they have begun.

    Source: Kubernetes, "Horizontal Pod Autoscaling", on its algorithm and its stabilization window.
    """

    fewest: int = 1
    most: int = 64
    metric: str = "waiting"
    target: float = 5.0
    every: float = 15.0
    cold_start: float = 120.0
    window: float = 300.0


@dataclass
class Group:
    """The replicas of one model: those that serve, those that start (with when they will serve), and what was wanted lately."""

    config: ReplicaConfig
    serving: list[int] = field(default_factory=list)
    starting: list[tuple[float, int]] = field(default_factory=list)
    wanted: list[tuple[float, int]] = field(default_factory=list)
    tokens: int = 0  # computed until the last look


def daily(requests: Sequence[TrafficRequest], rate: float, swing: float = 0.8) -> list[TrafficRequest]:
    """The requests over a day, from its quietest moment on: `rate` a second on average, (1 - swing) to (1 + swing) times that.

    They are repeated as often as a day needs. Their order and the unevenness of their gaps stay.
    """
    count = round(rate * DAY)
    gaps = np.diff([r.arrival for r in requests], append=requests[-1].arrival)
    share = np.cumsum(np.resize(gaps, count)) / np.resize(gaps, count).sum()
    times = np.linspace(0, DAY, 10_001)
    by_then = times / DAY - swing / (2 * np.pi) * np.sin(2 * np.pi * times / DAY)
    arrivals = np.interp(share, by_then, times).tolist()
    return [replace(requests[i % len(requests)], arrival=t) for i, t in enumerate(arrivals)]


def later(day: Iterable[TrafficRequest], hours: float) -> list[TrafficRequest]:
    """The same day where the sun rises so many hours later."""
    moved = (replace(r, arrival=(r.arrival + 3600 * hours) % DAY) for r in day)
    return sorted(moved, key=lambda r: r.arrival)


def serve_autoscaled(
    requests: Iterable[TrafficRequest], models: dict[str, ReplicaConfig], scaler: Autoscaler
) -> tuple[FleetRun, list[tuple[float, float]]]:
    """Serve all requests, each by the least loaded replica of its model that serves then.

    Args:
        models: by the `kind` of their requests; "": of all other requests.

    Returns:
        The run, and for each replica from when to when it is paid for, in seconds. The cold start is paid for.
    """
    run, begun, ended, look = FleetRun([]), [], {}, 0.0
    groups = {kind: Group(config) for kind, config in models.items()}

    def start(group: Group, ready: float) -> None:
        group.starting.append((ready, len(run.replicas)))
        run.replicas.append(ClockedEngine.made_from(group.config))
        begun.append(look)

    def adapt(group: Group) -> None:
        group.serving += [i for ready, i in group.starting if ready <= look]
        group.starting = [(ready, i) for ready, i in group.starting if ready > look]
        own = [run.replicas[i] for i in group.serving]
        before, group.tokens = group.tokens, sum(replica.run.tokens for replica in own)
        waiting = sum(len(replica.scheduler.waiting) for replica in own)
        value = waiting if scaler.metric == "waiting" else (group.tokens - before) / scaler.every
        lately = [(time, n) for time, n in group.wanted if time > look - scaler.window]
        group.wanted = [*lately, (look, max(scaler.fewest, math.ceil(value / scaler.target)))]
        for _ in range(len(group.serving) - max(n for _, n in group.wanted)):
            i = group.serving.pop()
            ended[i], group.tokens = look, group.tokens - run.replicas[i].run.tokens
        in_use = sum(i not in ended or r.scheduler.has_requests for i, r in enumerate(run.replicas))
        missing = group.wanted[-1][1] - len(group.serving) - len(group.starting)
        for _ in range(min(missing, scaler.most - in_use)):
            start(group, look + scaler.cold_start)

    for group in groups.values():
        for _ in range(scaler.fewest):
            start(group, 0.0)
    for number, request in enumerate(requests):
        while look <= request.arrival:
            run.advance(look)
            for group in groups.values():
                adapt(group)
            look += scaler.every
        run.advance(request.arrival)
        serving = groups[request.kind if request.kind in groups else ""].serving
        loads = [run.replicas[i].load(request.arrival) for i in serving]
        run.give(request, number, serving[least(loads)])
    run.finish()
    paid = [(time, max(ended.get(i, look), run.replicas[i].now)) for i, time in enumerate(begun)]
    return run, paid
