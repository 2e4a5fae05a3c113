"""A fleet that grows and shrinks with its queue, as an autoscaler on `vllm:num_requests_waiting` lets it, over a day.

Source: KEDA's scalers for queues: as many replicas as the queue has times a target, and a wait before one leaves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from phase4_scheduler.simulator.fleet import FleetRun, Replica, ReplicaConfig, finish, no_garbage_collection
from phase4_scheduler.simulator.routers import least
from phase4_scheduler.simulator.traffic import TrafficRequest

DAY = 86_400.0  # seconds


@dataclass(frozen=True)
class Autoscaler:
    """
    Attributes:
        fewest, most: replicas.
        target: waiting requests per replica above which replicas are added: one for each `target` requests that wait.
        every: seconds between two looks. cold_start: seconds from a look until a replica it adds serves.
        patience: seconds without a waiting request after which one replica leaves. It first ends what it has begun.
    """

    fewest: int = 1
    most: int = 64
    target: float = 5.0
    every: float = 15.0
    cold_start: float = 120.0
    patience: float = 300.0


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


@no_garbage_collection()
def serve_autoscaled(
    requests: Sequence[TrafficRequest], config: ReplicaConfig, scaler: Autoscaler
) -> tuple[FleetRun, list[tuple[float, float]]]:
    """Serve all requests, each by the least loaded replica that serves then.

    Returns:
        The run, and for each replica from when to when it is paid for, in seconds. The cold start is paid for.
    """
    serving = [Replica.made_from(config) for _ in range(scaler.fewest)]
    begun = dict.fromkeys(serving, 0.0)  # of all replicas, in the order of their start
    ended: dict[Replica, float] = {}
    starting: list[tuple[float, Replica]] = []
    choices, refused, refusal, look, quiet_since = [], [], "", 0.0, 0.0
    for number, request in enumerate(requests):
        while look <= request.arrival:
            for replica in begun:
                replica.advance(look)
            serving += [replica for ready, replica in starting if ready <= look]
            starting = [(ready, replica) for ready, replica in starting if ready > look]
            waiting = sum(len(replica.scheduler.waiting) for replica in serving)
            size = len(serving) + len(starting)
            if waiting:
                quiet_since = look
            elif look - quiet_since >= scaler.patience and len(serving) > scaler.fewest:
                leaving, quiet_since = serving.pop(), look
                ended[leaving] = look
            if waiting > scaler.target * size:
                for _ in range(min(scaler.most, math.ceil(waiting / scaler.target)) - size):
                    starting.append((look + scaler.cold_start, Replica.made_from(config)))
                    begun[starting[-1][1]] = look
            look += scaler.every
        for replica in serving:
            replica.advance(request.arrival)
        chosen = serving[least([replica.load(request.arrival) for replica in serving])]
        choices.append(list(begun).index(chosen))
        try:
            chosen.take(request, number)
        except ValueError as error:
            refused.append(request.arrival)
            refusal = refusal or str(error)
    records = finish(begun)
    paid = [(start, max(ended.get(replica, look), replica.now)) for replica, start in begun.items()]
    return FleetRun(list(begun), records, choices, refused, refusal), paid
