"""A fleet in virtual time: several schedulers, each with its own cache and its own clock, and one router in front.

Replicas know nothing of each other. They meet only where a request comes in: at that moment each has made all steps
that began before, and the router looks at how many requests are still in flight.

A prompt's blocks have names here (the hash ids of a trace), so no prompt is ever made up: two prompts share exactly
the blocks whose names they share.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import Scheduler, SchedulerConfig
from phase4_scheduler.features.kv_events import KVEventBlockManager
from phase4_scheduler.simulator.cost_model import CostModel
from phase4_scheduler.simulator.latency import RequestRecord
from phase4_scheduler.simulator.routers import Router
from phase4_scheduler.simulator.traffic import TrafficRequest
from phase4_scheduler.simulator.virtual_time import ClockedEngine


@dataclass(frozen=True)
class ReplicaConfig:
    """What one replica is made of.

    Attributes:
        cost: how long a step takes.
        num_blocks: size of its KV cache.
        block_size: tokens a block. One hash id of the traffic names one block: 512 tokens in a Mooncake trace.
    """

    cost: CostModel
    scheduler: SchedulerConfig
    num_blocks: int
    block_size: int = 16
    enable_prefix_caching: bool = True


class Replica(ClockedEngine):
    """One engine of the fleet."""

    @classmethod
    def made_from(cls, config: ReplicaConfig, manager: type[BlockManager] = BlockManager) -> Self:
        sizes = (config.num_blocks, config.block_size, config.enable_prefix_caching)
        return cls(Scheduler(config.scheduler, manager(*sizes)), config.cost)

    def load(self, time: float) -> int:
        """Requests in flight at that time. (Those of a step that is not over yet have their last tokens already.)"""
        leaving = itertools.takewhile(lambda r: r.token_times[-1] > time, reversed(self.run.records))
        return len(self.unfinished) + sum(1 for _ in leaving)

    def take(self, arriving: TrafficRequest, number: int) -> None:
        """Raises ValueError if it could never fit."""
        # Its tokens are its number, over and over. The names of its blocks say what it shares.
        isl, size = arriving.prompt_tokens, self.scheduler.block_manager.block_size
        names = block_names(arriving, size)
        own = range(len(names), (isl + arriving.output_tokens) // size)
        self.add(arriving, number, [number] * isl, [*names, *(b"%d block %d" % (number, i) for i in own)])


def block_names(request: TrafficRequest, block_size: int) -> tuple[bytes, ...]:
    """Of the full blocks of a prompt that the traffic has names for, as its replica calls them."""
    return tuple(name.to_bytes(8) for name in request.hash_ids[: request.prompt_tokens // block_size])


@dataclass
class FleetRun:
    """What happened.

    Attributes:
        records: finished requests, in the order of their arrivals.
        choices: the replica of each request that came.
        refused: arrivals of requests that could never fit, and why the first of them was refused.
    """

    replicas: list[Replica]
    records: list[RequestRecord]
    choices: list[int]
    refused: list[float]
    refusal: str

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


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A fleet has hundreds of thousands of blocks, and they live until it ends. Python would look through them for
    garbage again and again: a fifth of the time with 16 replicas."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@no_garbage_collection()
def serve_fleet(
    requests: Iterable[TrafficRequest], config: ReplicaConfig, num_replicas: int, router: Router
) -> FleetRun:
    """Serve all requests with `num_replicas` equal replicas.

    Args:
        requests: in the order of their arrivals.

    The result depends on the arguments alone: the same seed, the same run.
    """
    observe = getattr(router, "observe", None)
    manager = KVEventBlockManager if observe else BlockManager
    replicas = [Replica.made_from(config, manager) for _ in range(num_replicas)]
    choices, refused, refusal = [], [], ""
    for number, request in enumerate(requests):
        for replica in replicas:
            replica.advance(request.arrival)
        asked = request
        if observe:
            for i, replica in enumerate(replicas):
                observe(i, replica.scheduler.block_manager.take_kv_events())
            asked = replace(request, hash_ids=block_names(request, config.block_size))
        choices.append(router.choose(asked, [replica.load(request.arrival) for replica in replicas]))
        try:
            replicas[choices[-1]].take(request, number)
        except ValueError as error:
            refused.append(request.arrival)
            refusal = refusal or str(error)
    return FleetRun(replicas, finish(replicas), choices, refused, refusal)


def finish(replicas: Iterable[Replica]) -> list[RequestRecord]:
    """Serve what is left. Returns the records of all requests, by arrival."""
    for replica in replicas:
        replica.advance(math.inf)
    return sorted((r for replica in replicas for r in replica.run.records), key=lambda r: r.arrival)
