"""Is it worth it? One process for prompts and one for answers, against two that do both: for several kinds of traffic and
several SLOs, the highest rate at which 90% of the requests meet theirs, in virtual time.

In both ways the engines' chunk (tokens per step at most) is tuned: each SLO takes the best of some.

Source: Zhong et al., "DistServe" (2024): goodput by attainment.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine import Request, Scheduler, SchedulerConfig
from phase4_scheduler.features.kv_transfer import KVConnector, KVTransferScheduler
from phase4_scheduler.simulator.cost_model import CostModel, FittedCost
from phase4_scheduler.simulator.latency import RequestRecord
from phase4_scheduler.simulator.traffic import PromptMaker, TrafficRequest, arrival_times
from phase4_scheduler.simulator.virtual_time import ClockedEngine

ATTAINMENT = 0.9
BLOCK_SIZE = 16
MEASURED = Path(__file__).parent / "measured" / "cpu_xeon_2core.json"


class SLO(NamedTuple):
    """Limits in seconds: of the time to the first token, and of the mean gap between an answer's tokens."""

    ttft: float
    tpot: float

    def kept_share(self, records: Sequence[RequestRecord]) -> float:
        return sum(r.ttft <= self.ttft and r.tpot <= self.tpot for r in records) / len(records)


class Kind(NamedTuple):
    """Traffic: mean lengths of prompt and answer, in tokens. Each is drawn from half to one and a half times the mean.

    Attributes:
        rates: those that are tried, requests per second. requests: of each run.
    """

    prompt: int
    answer: int
    rates: tuple[float, ...]
    requests: int

    def draw(self, rate: float, seed: int) -> list[TrafficRequest]:
        """Requests at this rate. The lengths do not depend on it."""
        rng = np.random.default_rng([seed, self.prompt, self.answer])
        prompts, answers = (
            rng.integers(mean // 2, mean + mean // 2 + 1, self.requests)
            for mean in (self.prompt, self.answer)
        )
        times = arrival_times(self.requests, rate, 1.0, np.random.default_rng([seed, 1]))
        return [
            TrafficRequest(float(t), int(isl), int(osl))
            for t, isl, osl in zip(times, prompts, answers, strict=True)
        ]


@dataclass(frozen=True)
class Layout:
    """Two processes, and the largest step of those that compute prompts."""

    split: bool  # one for prompts and one for answers
    chunk: int


KINDS = {
    "summaries": Kind(640, 24, (2.5, 4.0, 6.0, 9.0, 13.0), 30),
    "code": Kind(480, 48, (4.0, 6.0, 9.0, 12.0, 15.0), 40),
    "chat": Kind(64, 200, (4.0, 8.0, 12.0, 18.0, 28.0, 40.0), 40),
}
SLOS = {"soon": SLO(0.15, 0.03), "steady": SLO(1.0, 0.004), "both": SLO(0.5, 0.005)}
LAYOUTS = [Layout(True, 256), *(Layout(False, chunk) for chunk in (32, 128, 512))]


@cache
def measured() -> dict[str, Any]:
    """What was measured with real processes: goodput by kind and SLO (apart, alike), prices of a step, seconds of a handover."""
    return json.loads(MEASURED.read_text(encoding="utf-8"))


def highest_rate(share_at: dict[float, float]) -> float:
    """The rate up to which enough requests meet their SLO, from shares at some rates. Between two of them on the
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


def virtual_goodput(kind: Kind, split: bool, slo: SLO, seed: int = 0) -> float:
    """The highest rate that meets an SLO, with the chunk that does best: on a machine with the measured prices."""
    cost, handover = FittedCost(tuple(measured()["prices"])), measured()["handover"]

    def share(layout: Layout, rate: float) -> float:
        return slo.kept_share(serve_virtually(layout, kind.draw(rate, seed), cost, handover))

    layouts = [layout for layout in LAYOUTS if layout.split == split]
    return max(highest_rate({rate: share(layout, rate) for rate in kind.rates}) for layout in layouts)


class AlreadyLoaded(KVConnector):
    """All tokens of a prompt but the last come from elsewhere, within the step."""

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return max(0, request.num_prompt_tokens - 1 - num_computed_tokens), False


def serve_virtually(
    layout: Layout, requests: Sequence[TrafficRequest], cost: CostModel, handover: float
) -> list[RequestRecord]:
    """The records of two such processes.

    Args:
        cost: of a step.
        handover: seconds from the end of a prompt to its request's arrival at the decode process.
    """

    def engine(chunk: int, connector: KVConnector | None = None) -> ClockedEngine:
        config, manager = SchedulerConfig(64, chunk), BlockManager(4000, BLOCK_SIZE)
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
    ready = sorted((record.token_times[0] + handover, int(record.kind)) for record in prefill.run.records)
    for at, i in ready:
        decode.advance(at)
        decode.add(replace(requests[i], arrival=at, kind=str(i)), i, prompts.prompt(requests[i], i))
    decode.advance(float("inf"))
    return [replace(record, arrival=requests[int(record.kind)].arrival) for record in decode.run.records]
