"""How many replicas meet an SLO? The fleet is simulated with one, two, four, ... and the answer is bisected.

An SLO is a TTFT, a TPOT and a share: so many of the requests see both. More replicas meet it for more requests, so the
smallest number that keeps it can be found by halving. Some SLOs cannot be met: if one request alone on an
idle replica is too slow already, no number of replicas will help.

A fleet that gets less done than what comes is lost in the end, but the end may be later than the last request that is
simulated. So no plan has fewer replicas than the traffic's rate over what one replica gets done while requests wait (`Load`).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from labkit.errors import LabError
from phase1_tokens_embeddings.weights import Card
from phase4_scheduler.simulator.cost_model import CostModel, StepSize
from phase4_scheduler.simulator.fleet import FleetRun, ReplicaConfig, serve_fleet
from phase4_scheduler.simulator.latency import RequestRecord, percentiles
from phase4_scheduler.simulator.load_tests import saturated_rate
from phase4_scheduler.simulator.parallel_cost import ParallelCost
from phase4_scheduler.simulator.routers import LeastLoaded, Router
from phase4_scheduler.simulator.traffic import TrafficRequest

MOST_REPLICAS = 256
# The share of its data sheet at which the computed clock agrees with what was recorded on a card (`recorded_runs.py`): the means of
# TTFT, TPOT and end-to-end time and the throughput within 4%. Other cards are computed with 80%, and steps may take so many times
# as long.
RECORDED_EFFICIENCY = {"rtx4090": 0.8, "rtxpro6000": 0.66}
CLOCK_EFFICIENCY, CLOCK_RANGE = 0.8, (0.95, 1.25)


def efficiency_of(card: Card) -> float:
    """The share of its data sheet that steps on this card reach: as recorded, or what most do."""
    return RECORDED_EFFICIENCY.get(card.name, CLOCK_EFFICIENCY)


ENOUGH = 600  # requests at once: several times as many as run at a time
GROWTH = [step / 20 for step in range(21)]  # more traffic than planned for: 0, 5%, 10%, ... 100%


# ---------------------------------------------------------------------- the SLO


def settled(run: FleetRun) -> list[RequestRecord]:
    """Records of a run without the first fifth of its time, when the fleet was still filling up."""
    since = warm_up(run)
    return [r for r in run.records if r.arrival >= since]


def warm_up(run: FleetRun) -> float:
    last = [r.arrival for r in run.records[-1:]] + run.refused[-1:]
    return max(last) / 5


@dataclass(frozen=True)
class SLO:
    """`share` of the requests get their first token within `ttft` seconds and the others every `tpot` seconds."""

    ttft: float
    tpot: float
    share: float = 0.95

    def kept(self, run: FleetRun) -> list[bool]:
        """Request by request, once the fleet has settled. A refused request misses it."""
        refused = sum(time >= warm_up(run) for time in run.refused)
        return [r.meets(self.ttft, self.tpot) for r in settled(run)] + [False] * refused

    def kept_share(self, run: FleetRun) -> float:
        return float(np.mean(self.kept(run)))

    def missed_by(self, run: FleetRun) -> str:
        """Which half of the SLO more requests missed: "TTFT" or "TPOT"."""
        records = settled(run)
        late = sum(r.ttft > self.ttft for r in records)
        slow = sum(r.tpot > self.tpot for r in records)
        return "TTFT" if late >= slow else "TPOT"


def alone(request: TrafficRequest, config: ReplicaConfig, cached: int = 0) -> tuple[float, float]:
    """TTFT and TPOT of a request that has an idle replica to itself. It cannot be served faster.

    Args:
        cached: prompt tokens that the prefix cache has.
    """
    isl, budget = request.prompt_tokens, config.scheduler.max_num_batched_tokens
    ttft = sum(
        config.cost.seconds(StepSize.of([(at, min(budget, isl - at))])) for at in range(cached, isl, budget)
    )
    osl = request.output_tokens
    middle = config.cost.seconds(StepSize.of([(isl + osl // 2 - 1, 1)]))  # of its decode steps
    return ttft, middle if osl > 1 else 0.0


def why_impossible(traffic: Sequence[TrafficRequest], config: ReplicaConfig, slo: SLO) -> str:
    """The limit that forbids an SLO whatever the number of replicas; "" if none does.

    Each request is given an idle replica, whose cache holds whatever any request before it left behind. Those of the
    warm-up are not judged (`settled`).
    """
    context, room = config.scheduler.max_model_len, (config.num_blocks - 1) * config.block_size
    longest = min(context or room, room)
    seen: set[int] = set()
    judged: list[tuple[float, float, bool]] = []  # TTFT, TPOT, too long
    for r in traffic:
        known = next((i for i, name in enumerate(r.hash_ids) if name not in seen), len(r.hash_ids))
        seen.update(r.hash_ids)
        if r.arrival >= traffic[-1].arrival / 5:
            cached = known * config.block_size if config.enable_prefix_caching else 0
            cached = min(cached, r.prompt_tokens - 1)
            judged.append((*alone(r, config, cached), r.prompt_tokens + r.output_tokens > longest))
    ttfts, tpots, too_long = map(np.array, zip(*judged, strict=True))
    if np.mean((ttfts <= slo.ttft) & (tpots <= slo.tpot) & ~too_long) >= slo.share:
        return ""
    late, slow, large = (float(np.mean(each)) for each in (ttfts > slo.ttft, tpots > slo.tpot, too_long))
    if large == max(late, slow, large):
        limit = "context" if longest == context else "KV cache"
        return f"{limit}: {large:.0%} of the requests are longer than the {longest:,} tokens that fit"
    if late >= slow:
        return (
            f"arithmetic: a prompt alone on an idle replica takes {np.median(ttfts):.2f} s in the median, and "
            f"{late:.0%} take more than {slo.ttft:g} s"
        )
    limit, why = (
        ("wires", "cards wait for each other")
        if waits_for_wires(config.cost)
        else ("memory bandwidth", "it reads all weights")
    )
    return (
        f"{limit}: one user's token on an idle replica takes {1000 * np.median(tpots):.1f} ms, since {why}; "
        f"{1000 * slo.tpot:g} ms are the SLO"
    )


def waits_for_wires(cost: CostModel) -> bool:
    """Whether cards that share a model spend more of a user's token on what crosses between them than on computing."""
    token = StepSize.of([(0, 1)])
    return isinstance(cost, ParallelCost) and cost.communication_seconds(token) > cost.compute_seconds(token)


# ---------------------------------------------------------------------- the search


def smallest(holds: Callable[[int], bool], most: int, least: int = 1) -> int | None:
    """The smallest number from `least` to `most` for which it holds, if it holds for all above as well; None if for none.

    >>> smallest(lambda n: n >= 11, most=100)
    11
    """
    low, high = least - 1, min(least, most)  # for `low` it does not hold
    while not holds(high):
        if high == most:
            return None
        low, high = high, min(2 * high - least + 1, most)
    return low + 1 + bisect.bisect_left(range(low + 1, high), True, key=holds)


def faster(traffic: Sequence[TrafficRequest], factor: float) -> list[TrafficRequest]:
    """The same requests, `factor` times as many a second."""
    return [replace(r, arrival=r.arrival / factor) for r in traffic]


def bootstrap(values: Sequence[float], statistic: Callable[[np.ndarray], float]) -> tuple[float, float]:
    """The interval in which a statistic falls in 95 of 100 draws like this one.

    Neighbours in a queue share their fate, so they are drawn together: 25 stretches of consecutive requests, with
    replacement. (Drawn one by one, a p95 would look far more certain than it is.)

    Source: Künsch, "The Jackknife and the Bootstrap for General Stationary Observations" (1989).
    """
    stretches = np.array_split(np.asarray(values, dtype=float), min(25, len(values)))
    rng = np.random.default_rng(0)
    found = [
        statistic(np.concatenate([stretches[i] for i in rng.integers(len(stretches), size=len(stretches))]))
        for _ in range(400)
    ]
    low, high = percentiles(found, (2.5, 97.5))
    return low, high


@dataclass(frozen=True)
class Estimate:
    """A number and the interval that the bootstrap gives it."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], statistic: Callable[[np.ndarray], float]) -> Estimate:
        return cls(float(statistic(np.asarray(values, dtype=float))), *bootstrap(values, statistic))


@dataclass(frozen=True)
class Load:
    """A traffic beside what one replica can take of it.

    Attributes:
        rate: requests per second that come.
        most: requests per second that one replica gets done while some always wait.
        stay: seconds that a request then runs, in the median, after it has waited.
    """

    rate: float
    most: float
    stay: float

    @classmethod
    def of(cls, traffic: Sequence[TrafficRequest], config: ReplicaConfig) -> Load:
        """Serves the requests all at once. Those that share nothing are repeated, so that some always wait."""
        some = list(traffic) if any(r.hash_ids for r in traffic) else (list(traffic) * ENOUGH)[:ENOUGH]
        at_once = [replace(r, arrival=0.0) for r in some]
        (replica,) = serve_fleet(at_once, config, 1, LeastLoaded()).replicas
        records = replica.run.records
        prompt, _ = alone(sorted(traffic, key=lambda r: r.prompt_tokens)[len(traffic) // 2], config)
        stays = [prompt + r.token_times[-1] - r.token_times[0] for r in records]
        span = traffic[-1].arrival
        rate = (len(traffic) - 1) / span if span else 0.0
        return cls(rate, saturated_rate(replica.run), float(np.median(stays)) if stays else 0.0)

    @property
    def replicas(self) -> float:
        """The estimate: how many replicas the traffic keeps busy. Not whole, and without any SLO."""
        return self.rate / self.most if self.most else 0.0


@dataclass(frozen=True)
class Plan:
    """The answer.

    Attributes:
        replicas: each on the cards that its cost model knows.
        dollars_per_hour: of all cards of all replicas.
        ttft, tpot: p95, seconds.
        kept: share of the requests within the SLO.
        dollars_per_million: dollars for a million tokens of answers.
        headroom: how much more traffic the same fleet takes: 0.2 is 20%. GROWTH ends at 1.
        limit: what misses the SLO when traffic grows beyond that.
    """

    replicas: int
    run: FleetRun
    kept: Estimate
    ttft: Estimate
    tpot: Estimate
    dollars_per_hour: float
    dollars_per_million: float
    headroom: float
    limit: str


def make_plan(
    traffic: Sequence[TrafficRequest],
    config: ReplicaConfig,
    slo: SLO,
    make_router: Callable[[], Router],
    dollars_per_hour: float,
    most: int = MOST_REPLICAS,
    least: int = 1,
    watch: Callable[[Sequence[TrafficRequest], str], Iterable[TrafficRequest]] = lambda requests, what: (
        requests
    ),
) -> Plan:
    """The smallest fleet that meets an SLO.

    Args:
        traffic: several requests, not all at once, in the order of their arrivals.
        dollars_per_hour: of one replica, all its cards.
        least, most: replicas.
        watch: gets the requests of each simulated fleet, such as for a progress bar.

    Raises:
        LabError: no number of replicas does; with the limit that forbids it.
    """
    if reason := why_impossible(traffic, config, slo):
        raise LabError(f"no number of replicas meets this SLO. What forbids it is {reason}")

    @cache
    def serve(n: int, growth: int = 0) -> FleetRun:
        what = f"{n} replicas" + f", {GROWTH[growth]:.0%} more traffic" * bool(growth)
        return serve_fleet(watch(faster(traffic, 1 + GROWTH[growth]), what), config, n, make_router())

    n = smallest(lambda n: slo.kept_share(serve(n)) >= slo.share, most, least)
    if n is None:
        run = serve(most)
        raise LabError(
            f"more than {most} replicas would be needed: with {most}, {slo.kept_share(run):.1%} of the requests are within "
            f"the SLO, not {slo.share:.1%}. What is short: {binding_limit(run, slo)}"
        )
    run = serve(n)
    first = smallest(lambda step: slo.kept_share(serve(n, step)) < slo.share, len(GROWTH) - 1)
    records = settled(run)
    tokens_per_second = sum(r.output_tokens for r in traffic) / traffic[-1].arrival
    return Plan(
        n,
        run,
        Estimate.of(slo.kept(run), np.mean),
        Estimate.of([r.ttft for r in records], p95),
        Estimate.of([r.tpot for r in records], p95),
        n * dollars_per_hour,
        n * dollars_per_hour / 3600 / tokens_per_second * 1e6,
        GROWTH[-1] if first is None else GROWTH[first - 1],  # the step below the first that breaks it
        "none up to twice the traffic" if first is None else binding_limit(serve(n, first), slo),
    )


def p95(values: np.ndarray) -> float:
    return percentiles(values, [95])[0]


def binding_limit(run: FleetRun, slo: SLO) -> str:
    """What stands in the way of a fleet that misses its SLO: what its requests waited for, or what made its
    steps long."""
    if slo.missed_by(run) == "TPOT":
        if run.decode_step > slo.tpot and waits_for_wires(run.replicas[0].cost):
            return "TPOT: adding up what the cards of a replica computed (wires)"
        if run.decode_step > slo.tpot:
            return "TPOT: reading weights and caches in each step (memory bandwidth)"
        return "TPOT: prompts of others in the same steps (token budget)"
    waited = run.waited
    if not waited:
        return "TTFT: the prompts themselves (arithmetic)"
    why = {
        "max_num_seqs": "a running request to end (max_num_seqs)",
        "token budget": "earlier prompts (arithmetic)",
        "KV cache": "free blocks (KV cache)",
    }
    return f"TTFT: waiting for {why[waited.most_common(1)[0][0]]}"
