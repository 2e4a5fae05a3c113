"""What a user feels, in figures: TTFT, ITL, end-to-end time, their percentiles, and goodput.

- TTFT, time to first token: how long the screen stays empty.
- ITL, inter-token latency: the gap between two tokens. A reader notices gaps longer than reading takes.
- TPOT, time per output token: the mean gap of one answer.
- End-to-end time: from the question to the last token of the answer.

A mean hides the unlucky. p95 is the value that 95 of 100 stay below; one user in twenty fares worse.
Goodput counts only requests that were served well enough: within the SLO (service level objective), a limit
on TTFT and TPOT. A server can be busy and have no goodput at all.

Source: Zhong et al., "DistServe" (2024), section 2; vllm/benchmarks/serve.py for goodput by request.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass
class RequestRecord:
    """The life of one request, in seconds on the run's clock.

    Attributes:
        kind: the pattern it came from.
        queued: when the scheduler learned of it: between two steps, so up to a step after its arrival.
        token_times: when each token of its answer came out.
        num_cached_tokens: prompt tokens that the prefix cache had already.
    """

    kind: str
    arrival: float
    prompt_tokens: int
    output_tokens: int
    token_times: list[float] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    queued: float = 0.0

    @property
    def ttft(self) -> float:
        return self.token_times[0] - self.arrival

    @property
    def e2e(self) -> float:
        return self.token_times[-1] - self.arrival

    @property
    def itls(self) -> np.ndarray:
        """Gaps between tokens; none if the answer has one token."""
        return np.diff(self.token_times)

    @property
    def tpot(self) -> float:
        """Mean gap between its tokens; 0 for an answer of one token."""
        gaps = len(self.token_times) - 1
        return (self.token_times[-1] - self.token_times[0]) / gaps if gaps else 0.0

    def meets(self, ttft_slo: float, tpot_slo: float) -> bool:
        """Whether it was served well enough: its TTFT and its TPOT are within the limits."""
        return self.ttft <= ttft_slo and self.tpot <= tpot_slo


@dataclass
class Run:
    """What happened.

    Attributes:
        records: finished requests, in the order in which they finished.
        refused: requests that could never fit, and why the first of them was refused.
        times, durations: of each step, its begin and its length in seconds.
        running, waiting: requests in each step.
        usage: share of the KV blocks in use in each step.
        tokens: computed, of prompts and answers.
        in_system_seconds: seconds that requests spent in the system, all together, counted by the scheduler.
        preemptions: of the whole run.
        decode_steps, decode_seconds: of the steps without a prompt token.
        waited: seconds in which requests waited, by what kept them out of the step: "max_num_seqs", "token budget" or
            "KV cache".
    """

    records: list[RequestRecord] = field(default_factory=list)
    refused: int = 0
    refusal: str = ""
    times: list[float] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    usage: list[float] = field(default_factory=list)
    tokens: int = 0
    in_system_seconds: float = 0.0
    preemptions: int = 0
    decode_steps: int = 0
    decode_seconds: float = 0.0
    waited: Counter[str] = field(default_factory=Counter)

    def mean_usage(self, since: float = -np.inf, until: float = np.inf) -> float:
        """KV usage, averaged over the time in which there was something to do."""
        times = np.asarray(self.times)
        window = (times >= since) & (times <= until)
        weights = np.asarray(self.durations)[window]
        return float(np.average(np.asarray(self.usage)[window], weights=weights)) if weights.sum() else 0.0

    @property
    def peak_usage(self) -> float:
        return max(self.usage, default=0.0)


def percentiles(values: Sequence[float] | np.ndarray, ranks: Sequence[float]) -> list[float]:
    """Values that `ranks` percent of the others stay below. Between two values, on the straight line.

    >>> percentiles([10, 20, 30, 40], [50, 100])
    [25.0, 40.0]
    """
    return np.percentile(values, ranks).tolist()


@dataclass(frozen=True)
class Spread:
    """A latency of many requests, in seconds."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> Spread:
        """All zero for no values."""
        if not len(values):
            return cls(0.0, 0.0, 0.0, 0.0, 0.0)
        return cls(float(np.mean(values)), *percentiles(values, (50, 95, 99, 100)))


@dataclass(frozen=True)
class Latency:
    """What the users of a run felt, and what the server got done.

    Attributes:
        seconds: from the first arrival to the last token.
        ttft, itl, e2e: spreads; ITL over all gaps of all requests.
        good: requests within the SLO.
    """

    requests: int
    seconds: float
    prompt_tokens: int
    output_tokens: int
    ttft: Spread
    itl: Spread
    e2e: Spread
    good: int

    @property
    def requests_per_second(self) -> float:
        return self.requests / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second."""
        return self.output_tokens / self.seconds

    @property
    def goodput(self) -> float:
        """Requests a second that were served within the SLO."""
        return self.good / self.seconds

    @property
    def good_share(self) -> float:
        return self.good / self.requests


def summarise(
    records: Sequence[RequestRecord], ttft_slo: float = math.inf, tpot_slo: float = math.inf
) -> Latency:
    """Sum up finished requests.

    Args:
        ttft_slo, tpot_slo: seconds.

    Raises:
        ValueError: no requests, or one without a token.
    """
    if not records or not all(r.token_times for r in records):
        raise ValueError("only finished requests can be summed up, and at least one")
    start = min(r.arrival for r in records)
    return Latency(
        requests=len(records),
        seconds=max(r.token_times[-1] for r in records) - start,
        prompt_tokens=sum(r.prompt_tokens for r in records),
        output_tokens=sum(len(r.token_times) for r in records),
        ttft=Spread.of([r.ttft for r in records]),
        itl=Spread.of(np.concatenate([r.itls for r in records])),
        e2e=Spread.of([r.e2e for r in records]),
        good=sum(r.meets(ttft_slo, tpot_slo) for r in records),
    )


def little(records: Sequence[RequestRecord]) -> float:
    """Little's law: requests in the system, on average, are their rate times the mean time each one stays.

    It needs no assumption on arrivals or service, only that each request that goes in comes out again. So a
    run that breaks it has lost a request, or its clock is wrong.

    Source: Little, "A Proof for the Queuing Formula: L = λW" (1961).
    """
    latency = summarise(records)
    return latency.requests_per_second * latency.e2e.mean
