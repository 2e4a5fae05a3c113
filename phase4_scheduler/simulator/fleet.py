"""A fleet in virtual time: several schedulers, each with its own cache and its own clock, and one router in front.

Replicas know nothing of each other. They meet only where a request comes in: at that moment each has made all steps
that began before, and the router looks at how many requests are still in flight.

A prompt's blocks have names here (the hash ids of a trace), so no prompt is ever made up: two prompts share exactly
the blocks whose names they share.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import Request, Scheduler, SchedulerConfig, SchedulerOutput
from phase4_scheduler.simulator.cost_model import CostModel, StepSize
from phase4_scheduler.simulator.latency import RequestRecord
from phase4_scheduler.simulator.routers import Router
from phase4_scheduler.simulator.traffic import TrafficRequest
from phase4_scheduler.simulator.virtual_time import ANSWER


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


class Replica:
    """One engine of the fleet, with a clock in place of a model.

    Attributes:
        now: when its last step ended, or will have ended.
        busy: seconds of all its steps.
        decode_steps, decode_seconds: of those that had no piece of a prompt in them.
        waited: seconds in which requests waited, by what kept them out of the step: "seats", "token budget" or
            "KV cache".
    """

    def __init__(self, config: ReplicaConfig) -> None:
        manager = BlockManager(config.num_blocks, config.block_size, config.enable_prefix_caching)
        self.config = config
        self.scheduler = Scheduler(config.scheduler, manager)
        self.now = self.busy = self.decode_seconds = 0.0
        self.decode_steps = 0
        self.waited: Counter[str] = Counter()
        self.records: list[RequestRecord] = []
        self._unfinished: dict[str, RequestRecord] = {}
        self._leaving = 0  # requests that are finished when the last step ends

    def load(self, time: float) -> int:
        """Requests in flight at that time."""
        return len(self._unfinished) + (self._leaving if time < self.now else 0)

    def add(self, arriving: TrafficRequest, number: int) -> None:
        """Raises ValueError if it could never fit."""
        isl, osl = arriving.prompt_tokens, arriving.output_tokens
        if isl + osl > self.scheduler.max_model_len:
            longest = self.scheduler.max_model_len
            raise ValueError(f"{isl:,} + {osl:,} tokens do not fit a context of {longest:,}")
        params = SamplingParams(max_tokens=osl, ignore_eos=True)
        request = Request(
            str(number), [number] * isl, params, arrival_time=arriving.arrival, priority=arriving.priority
        )
        # Its tokens are its number, over and over: nobody else's. What it shares, the names of its blocks say.
        names = arriving.hash_ids[: isl // self.config.block_size]
        request.block_table.block_hashes = [name.to_bytes(8) for name in names]
        self.scheduler.add(request)
        self._unfinished[request.request_id] = RequestRecord.of(arriving)
        self.now = max(self.now, arriving.arrival)

    def advance(self, until: float) -> None:
        """Make all steps that begin before this time."""
        while self.scheduler.has_requests and self.now < until:
            self.step()

    def step(self) -> None:
        output = self.scheduler.schedule()
        if not output.scheduled:
            return  # all that ran were preempted
        seconds = self.config.cost.seconds(
            StepSize.of([(s.num_computed, s.num_tokens) for s in output.scheduled])
        )
        self._note(output, seconds)
        self.now += seconds
        for s in output.scheduled:
            if s.samples:
                self._unfinished[s.request.request_id].token_times.append(self.now)
        finished = self.scheduler.update(output, [ANSWER if s.samples else None for s in output.scheduled])
        self._leaving = len(finished)
        for request in finished:
            record = self._unfinished.pop(request.request_id)
            record.num_cached_tokens = request.num_cached_tokens
            record.num_preemptions = request.num_preemptions
            self.records.append(record)

    def _note(self, output: SchedulerOutput, seconds: float) -> None:
        self.busy += seconds
        if output.num_batched_tokens == len(output.scheduled):
            self.decode_steps += 1
            self.decode_seconds += seconds
        if len(self.scheduler.waiting):
            limits = self.config.scheduler
            if len(self.scheduler.running) >= limits.max_num_seqs:
                self.waited["seats"] += seconds
            elif output.num_batched_tokens >= limits.max_num_batched_tokens:
                self.waited["token budget"] += seconds
            else:
                self.waited["KV cache"] += seconds


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
        return sum((replica.waited for replica in self.replicas), Counter())

    @property
    def decode_step(self) -> float:
        """Mean seconds of a step without a piece of a prompt in it; 0 if there was none."""
        steps = sum(replica.decode_steps for replica in self.replicas)
        return sum(replica.decode_seconds for replica in self.replicas) / steps if steps else 0.0


def serve_fleet(
    requests: Iterable[TrafficRequest], config: ReplicaConfig, num_replicas: int, router: Router
) -> FleetRun:
    """Serve all requests with `num_replicas` equal replicas.

    Args:
        requests: in the order of their arrivals.

    The result depends on the arguments alone: the same seed, the same run.
    """
    replicas = [Replica(config) for _ in range(num_replicas)]
    choices, refused, refusal = [], [], ""
    for number, request in enumerate(requests):
        for replica in replicas:
            replica.advance(request.arrival)
        choices.append(router.choose(request, [replica.load(request.arrival) for replica in replicas]))
        try:
            replicas[choices[-1]].add(request, number)
        except ValueError as error:
            refused.append(request.arrival)
            refusal = refusal or str(error)
    for replica in replicas:
        replica.advance(math.inf)
    records = sorted((r for replica in replicas for r in replica.records), key=lambda r: r.arrival)
    return FleetRun(replicas, records, choices, refused, refusal)
