"""Experiments in virtual time: how much can a server take, where does trouble begin, what stalls what?"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from phase4_scheduler.simulator.cost_model import CostModel, StepSize
from phase4_scheduler.simulator.fleet import ReplicaConfig
from phase4_scheduler.simulator.latency import Latency, RequestRecord, percentiles, summarise
from phase4_scheduler.simulator.traffic import TrafficRequest, draw_traffic
from phase4_scheduler.simulator.virtual_time import Run


def capacity(server: ReplicaConfig, pattern: str, requests: int, seed: int = 0) -> float:
    """Requests a second that a server gets done while there are always some waiting; 0 if none of them fits."""
    return saturated_rate(server.serve(draw_traffic(pattern, requests, math.inf, seed=seed)))


def saturated_rate(run: Run) -> float:
    """Requests a second of a run in which all requests came at once.

    What counts is the middle of the run: not the beginning, when all are in their prompts, and not the end, when none waits any
    more. There, tokens of answers a second, over the tokens of an answer. 0 if no request fits.
    """
    if not run.records:
        return 0.0
    length = np.mean([r.output_tokens for r in run.records])
    tokens = np.concatenate([r.token_times for r in run.records])
    begin = run.records[len(run.records) // 10].token_times[-1]
    end = max((time for time, waiting in zip(run.times, run.waiting) if waiting), default=0.0)
    done = np.count_nonzero((tokens > begin) & (tokens <= end))
    if done < len(tokens) / 10:  # hardly any ever waited: take the run as a whole
        begin, end, done = 0.0, tokens.max(), len(tokens)
    return float(done / (end - begin) / length)


# ---------------------------------------------------------------------- latency against load


@dataclass(frozen=True)
class LoadPoint:
    """A run at one load. The warm-up and what came after the last arrival are left out.

    Attributes:
        load: offered requests per second, over the capacity.
        usage: mean KV usage.
        arrivals: (KV usage on arrival, TTFT) of each request.
        preemptions: per 100 requests.
    """

    load: float
    rate: float
    latency: Latency
    usage: float
    preemptions: float
    arrivals: list[tuple[float, float]]


def load_point(
    server: ReplicaConfig, pattern: str, requests: int, load: float, most: float, seed: int = 0
) -> LoadPoint:
    """Serve `requests` requests at `load` times the capacity `most`."""
    traffic = draw_traffic(pattern, requests, load * most, seed=seed)
    run = server.serve(traffic)
    since, until = traffic[len(traffic) // 5].arrival, traffic[-1].arrival
    records = [r for r in run.records if r.arrival >= since]
    return LoadPoint(
        load,
        load * most,
        summarise(records),
        run.mean_usage(since, until),
        100 * sum(r.num_preemptions for r in records) / len(records),
        [(usage_at(run, r.arrival), r.ttft) for r in records],
    )


def usage_at(run: Run, time: float) -> float:
    """KV usage at a moment; 0 when there was no request."""
    i = int(np.searchsorted(run.times, time, side="right")) - 1
    return run.usage[i] if i >= 0 and time <= run.times[i] + run.durations[i] else 0.0


def ttft_by_usage(points: Sequence[LoadPoint]) -> list[tuple[float, float]]:
    """(lower end of a bin of KV usage, p95 of the TTFT of requests that arrived then)."""
    bins: dict[int, list[float]] = defaultdict(list)
    for usage, ttft in (arrival for p in points for arrival in p.arrivals):
        bins[min(int(20 * usage + 1e-9), 19)].append(ttft)  # 20 bins
    return [
        (i / 20, percentiles(ttfts, [95])[0])
        for i, ttfts in sorted(bins.items())
        if len(ttfts) >= 30  # fewer have no p95 to speak of
    ]


def alarming_usage(bins: Sequence[tuple[float, float]]) -> float | None:
    """Lower end of the first bin from which on TTFT stays above twice its value at less than half usage."""
    calm = [ttft for usage, ttft in bins if usage < 0.5]
    if not calm:
        return None
    bad = itertools.takewhile(lambda bin: bin[1] >= 2 * np.median(calm), reversed(bins))
    return min((usage for usage, _ in bad), default=None)


# ---------------------------------------------------------------------- one long prompt among many


@dataclass(frozen=True)
class Stall:
    """What one long prompt did to the others.

    Attributes:
        gaps: (time of a token, seconds since the one before) of the others, from the long one's arrival on.
        usual, worst: their median gap before it came, and their longest one after.
        ttft: of the long prompt itself.
    """

    gaps: list[tuple[float, float]]
    usual: float
    worst: float
    ttft: float

    @classmethod
    def of(cls, records: Sequence[RequestRecord]) -> Stall:
        """From the records of a run in which the longest prompt came last."""
        long = max(records, key=lambda r: r.prompt_tokens)
        arrival = long.arrival
        others = [r.token_times for r in records if r is not long]
        gaps = sorted((b, b - a) for times in others for a, b in zip(times, times[1:]))
        before = [gap for when, gap in gaps if when <= arrival]
        after = [(when - arrival, gap) for when, gap in gaps if when > arrival]
        return cls(after, float(np.median(before)), max(gap for _, gap in after), long.ttft)


def serve_stalled(
    server: ReplicaConfig,
    others: int,
    isl: int,
    osl: int,
    long_prompt: int,
    chunk: int | None,
    after: int = 60,
) -> Stall:
    """A long prompt arrives when step `after` of `others` short requests begins; all of them run at a time.

    Args:
        chunk: tokens of a step; None: prompts are not cut, so the budget must hold a whole one.
    """
    scheduler = replace(
        server.scheduler,
        max_num_seqs=others + 1,
        long_prefill_token_threshold=0,
        chunked_prefill=bool(chunk),
        max_num_batched_tokens=chunk or 2 * long_prompt + others + 1,
    )
    server = replace(server, scheduler=scheduler)
    short = [TrafficRequest(0.0, isl, osl, "others")] * others
    arrival = server.serve([*short, TrafficRequest(0.0, 1, 8)]).times[after]
    return Stall.of(server.serve([*short, TrafficRequest(arrival, long_prompt, 8)]).records)


def predicted_stalls(
    cost: CostModel, others: int, context: int, long_prompt: int, chunk: int
) -> tuple[float, float]:
    """Longest step with the whole prompt in it, and with at most `chunk` tokens in a step."""
    decodes = [(context - 1, 1)] * others
    whole = cost.seconds(StepSize.of([*decodes, (0, long_prompt)]))
    room = chunk - others
    starts = range(0, long_prompt, room)
    cut = max(cost.seconds(StepSize.of([*decodes, (at, min(room, long_prompt - at))])) for at in starts)
    return whole, cut
