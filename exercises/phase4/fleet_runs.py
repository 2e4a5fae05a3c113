"""The way into the engine for exercises 4.9 and 4.10: the course's scheduler in virtual time, one replica and four."""

from collections.abc import Callable, Sequence

import numpy as np

from exercises.judging.engine_runs import passed, same_or_stop
from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator import (
    ROUTERS,
    FleetRun,
    LinearCost,
    ReplicaConfig,
    TrafficRequest,
    find_cost,
    serve_fleet,
    simulate,
    summarise,
)
from phase4_scheduler.simulator.traffic import TRACE_BLOCK, arrival_times


def load_the_engine(in_system: Callable, running: Callable, highest_rate: Callable) -> None:
    """Exercise 4.9: what the learner expects at four rates, and what the scheduler does."""
    passed("p4e9_littles_law", in_system, running, highest_rate)
    tokens, fixed, each, most, count = 64, 0.02, 0.001, 32, 2000
    bears = highest_rate(tokens, fixed, each, most)
    print(
        f"Answers of {tokens} tokens, room for {most}: by your function {bears:.2f} requests per second are the maximum."
    )
    print(
        "rate / highest   you expect running   running   in the system, by your log   mean wait for the first token"
    )
    cost = LinearCost((fixed, 0.0, each, 0.0, 0.0))
    for share in (0.5, 0.8, 0.95, 1.1):
        arrivals = arrival_times(count, share * bears, 1.0, np.random.default_rng(9)).tolist()
        traffic = [TrafficRequest(arrival, 1, tokens) for arrival in arrivals]
        run = simulate(traffic, SchedulerConfig(max_num_seqs=most), 16 * most, cost)
        inside = in_system([(r.arrival, r.token_times[-1]) for r in run.records])
        counted = run.in_system_seconds / (run.times[-1] + run.durations[-1])
        says = "the scheduler counted its requests at every step, and comes to another number than you"
        same_or_stop(inside, counted, says, f"{count} requests at {share} of the highest rate")
        expected = running(share * bears, tokens, fixed, each, most)
        mean = np.average(run.running, weights=run.durations)
        wait = summarise(run.records).ttft.mean
        print(f"{share:11} {expected or 'too many':>20} {mean:9.1f} {inside:28.1f} {wait:27.2f} s")


def route_the_fleet(Router: type) -> None:
    """Exercise 4.10: the learner's router before four replicas, beside the course's."""
    passed("p4e10_router", Router)

    class Yours:
        def __init__(self, slack: int) -> None:
            self.router = Router(4, slack)

        def choose(self, request: TrafficRequest, loads: Sequence[int]) -> int:
            return self.router.choose(list(request.hash_ids), list(loads))

    cost = find_cost("l4")
    limits = SchedulerConfig(max_model_len=cost.max_context)
    config = ReplicaConfig(cost, limits, cost.num_blocks * 16 // TRACE_BLOCK, TRACE_BLOCK)
    traffic = talks()
    print("router               hit rate   TTFT p95   requests of the busiest replica")
    routers = {name.replace("-", " "): router() for name, router in ROUTERS.items()} | {
        "yours": Yours(slack=4),
        "yours, no brake": Yours(slack=10**6),
    }
    for name, router in routers.items():
        run = serve_fleet(traffic, config, 4, router)
        print(f"{name:19} {run.hit_rate:9.1%} {summarise(run.records).ttft.p95:8.1f} s {busiest(run):10.0%}")


def busiest(run: FleetRun) -> float:
    """Its share of the requests."""
    return max(len(replica.run.records) for replica in run.replicas) / len(run.records)


def talks(users: int = 160, rate: float = 6.0) -> list[TrafficRequest]:
    """Users who come three times, each time with all that was said. In the second quarter every other one who is new
    asks about one document."""
    rng = np.random.default_rng(10)
    document, requests, name = tuple(range(1, 9)), [], 9
    span = 3 * users / rate
    for _ in range(users):
        times = np.sort(rng.uniform(0, span, 3)).tolist()
        asks_about_it = rng.random() < 0.5 and span / 4 < times[0] < span / 2
        names = (0, *document) if asks_about_it else (0,)
        for time in times:
            more = int(rng.integers(1, 4))
            names += tuple(range(name, name + more))
            name += more
            prompt, answer = TRACE_BLOCK * len(names) + 40, int(rng.integers(50, 150))
            requests.append(TrafficRequest(time, prompt, answer, hash_ids=names))
    return sorted(requests, key=lambda request: request.arrival)
