"""Is it worth it? One process for prompts and one for answers, against two that do both: for several kinds of traffic and
several promises, the highest rate at which 90 of 100 requests are served as promised. On real processes, and in virtual time.

In both ways the engines' chunk (tokens a step at most) is tuned: each promise takes the best of some.

Source: Zhong et al., "DistServe" (2024): goodput by attainment.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine import Request, Scheduler, SchedulerConfig
from phase4_scheduler.features.kv_transfer import KVConnector, KVTransferScheduler
from phase4_scheduler.simulator.cost_model import CostModel
from phase4_scheduler.simulator.latency import RequestRecord
from phase4_scheduler.simulator.traffic import PromptMaker, TrafficRequest, arrival_times
from phase4_scheduler.simulator.virtual_time import ClockedEngine
from phase5_real_gpu.parallel.proxy import Proxy
from phase5_real_gpu.parallel.replicas import Replicas

ATTAINMENT = 0.9
BLOCK_SIZE = 16


class Promise(NamedTuple):
    """Limits in seconds: of the time to the first token, and of the mean gap between an answer's tokens."""

    ttft: float
    tpot: float

    def kept_share(self, pairs: Sequence[tuple[float, float]]) -> float:
        """Of requests, by the (TTFT, TPOT) of each."""
        return sum(ttft <= self.ttft and tpot <= self.tpot for ttft, tpot in pairs) / len(pairs)


class Kind(NamedTuple):
    """Traffic: mean lengths of prompt and answer, in tokens. Each is drawn from half to one and a half times the mean."""

    prompt: int
    answer: int

    def draw(self, n: int, rate: float, seed: int) -> list[TrafficRequest]:
        """`n` requests, `rate` a second. The lengths do not depend on the rate."""
        rng = np.random.default_rng([seed, self.prompt, self.answer])
        prompts, answers = (
            rng.integers(mean // 2, mean + mean // 2 + 1, n) for mean in (self.prompt, self.answer)
        )
        times = arrival_times(n, rate, 1.0, np.random.default_rng([seed, 1]))
        return [
            TrafficRequest(float(t), int(isl), int(osl))
            for t, isl, osl in zip(times, prompts, answers, strict=True)
        ]


@dataclass(frozen=True)
class Layout:
    """Two processes, and the largest step of those that compute prompts."""

    split: bool  # one for prompts and one for answers
    chunk: int

    @property
    def name(self) -> str:
        return f"{'prefill + decode' if self.split else 'two replicas'}, chunks of {self.chunk}"


def highest_rate(share_at: dict[float, float]) -> float:
    """The rate up to which enough requests are served as promised, from shares at some rates. Between two of them on the
    straight line; below the smallest, in proportion.

    >>> highest_rate({1.0: 1.0, 2.0: 0.95, 4.0: 0.85})
    3.0
    """
    best, before = 0.0, (0.0, 1.0)
    for rate, share in sorted(share_at.items()):
        if share >= ATTAINMENT:
            best = rate
        else:
            (x, y), slope = before, (share - before[1]) / (rate - before[0])
            return x + (ATTAINMENT - y) / slope if y > ATTAINMENT else best
        before = rate, share
    return best


# ---------------------------------------------------------------------- on real processes


def serve_front(
    front: Proxy | Replicas, requests: Sequence[TrafficRequest], vocab_size: int
) -> list[RequestRecord]:
    """Send requests when they are due, and wait for all answers. Times in seconds after the call."""
    prompts = [
        PromptMaker(vocab_size).prompt(r, i) for i, r in enumerate(requests)
    ]  # before the clock starts
    records = [RequestRecord.of(request) for request in requests]
    start, sent, ended = time.perf_counter(), 0, 0
    while ended < len(requests):
        now = time.perf_counter() - start
        while sent < len(requests) and requests[sent].arrival <= now:
            params = SamplingParams(temperature=0, max_tokens=requests[sent].output_tokens, ignore_eos=True)
            front.add(f"{start} {sent}", prompts[sent], params, start + requests[sent].arrival)
            sent += 1
        for new in front.poll(None if sent == len(requests) else max(0.0, requests[sent].arrival - now)):
            record = records[int(new.request_id.split()[1])]
            record.token_times += [new.time - start] * len(new.token_ids)
            ended += new.finish_reason is not None
    return records


# ---------------------------------------------------------------------- in virtual time


class AlreadyLoaded(KVConnector):
    """All tokens of a prompt but the last come from elsewhere, within the step."""

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return max(0, request.num_prompt_tokens - 1 - num_computed_tokens), False


def serve_virtually(
    layout: Layout,
    requests: Sequence[TrafficRequest],
    cost: CostModel,
    handover: Callable[[int], float],
    num_blocks: int,
    max_num_seqs: int = 64,
) -> list[RequestRecord]:
    """What the records of two such processes would be.

    Args:
        cost: of a step.
        handover: seconds from the end of a prompt of so many tokens to its request's arrival at the decode process.
    """

    def engine(chunk: int, connector: KVConnector | None = None) -> ClockedEngine:
        config = SchedulerConfig(max_num_seqs, chunk)
        manager = BlockManager(num_blocks, BLOCK_SIZE)
        if connector is None:
            return ClockedEngine(Scheduler(config, manager), cost)
        return ClockedEngine(KVTransferScheduler(config, manager, kv_connector=connector), cost)

    prompts = PromptMaker()
    if not layout.split:
        both = [engine(layout.chunk), engine(layout.chunk)]
        for i, request in enumerate(requests):
            for one in both:
                one.advance(request.arrival)
            min(both, key=lambda one: len(one.unfinished)).add(request, i, prompts.prompt(request, i))
        for one in both:
            one.advance(float("inf"))
        return [record for one in both for record in one.run.records]

    prefill, decode = engine(layout.chunk), engine(2048, AlreadyLoaded())
    for i, request in enumerate(requests):
        prefill.advance(request.arrival)
        # Its kind is its number: so the records say whose they are.
        prefill.add(replace(request, output_tokens=1, kind=str(i)), i, prompts.prompt(request, i))
    prefill.advance(float("inf"))
    ready = sorted(
        (record.token_times[0] + handover(record.prompt_tokens), int(record.kind))
        for record in prefill.run.records
    )
    for at, i in ready:
        decode.advance(at)
        decode.add(replace(requests[i], arrival=at, kind=str(i)), i, prompts.prompt(requests[i], i))
    decode.advance(float("inf"))
    return [replace(record, arrival=requests[int(record.kind)].arrival) for record in decode.run.records]
