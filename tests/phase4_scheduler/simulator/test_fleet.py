"""Fleets and routers: one replica is the simulator, several grow and shrink as by hand, each router follows its rule."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.cost_model import LinearCost
from phase4_scheduler.simulator.fleet import (
    DAY,
    Autoscaler,
    ReplicaConfig,
    daily,
    later,
    serve_autoscaled,
    serve_fleet,
)
from phase4_scheduler.simulator.routers import PrefixAware, RoundRobin
from phase4_scheduler.simulator.traffic import TrafficRequest, draw_traffic
from phase4_scheduler.simulator.virtual_time import simulate

COST = LinearCost((5e-3, 1e-4, 3e-4, 1e-7, 1e-8))
A_SECOND_A_TOKEN = LinearCost((0.0, 1.0, 0.0, 0.0, 0.0))


# ---------------------------------------------------------------------- fleets


@given(st.sampled_from(["chat", "code", "mixed"]), st.integers(0, 100), st.floats(0.5, 20))
@settings(max_examples=8)
def test_a_fleet_of_one_is_the_simulator(pattern, seed, rate):
    traffic = draw_traffic(pattern, 30, rate, seed=seed)
    limits = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=256)
    run = serve_fleet(traffic, ReplicaConfig(COST, limits, 400), 1, RoundRobin())
    alone = simulate(traffic, limits, 400, COST)
    times = {r.arrival: r.token_times for r in alone.records}
    assert {r.arrival: r.token_times for r in run.records} == times
    assert len(run.refused) == alone.refused


def test_a_request_counts_until_the_step_that_ends_it_is_over():
    """Ten prompt tokens, a second each, on the first of two replicas: until 10 s it is in flight."""
    config = ReplicaConfig(A_SECOND_A_TOKEN, SchedulerConfig(), 400)
    seen = []
    watch = SimpleNamespace(choose=lambda request, loads: seen.append(list(loads)) or 0)
    traffic = [TrafficRequest(0.0, 10, 1), TrafficRequest(9.5, 1, 1), TrafficRequest(30.0, 1, 1)]
    serve_fleet(traffic, config, 2, watch)
    assert seen == [[0, 0], [1, 0], [0, 0]]


# ---------------------------------------------------------------------- a fleet that follows its queue

TEN_SECONDS = ReplicaConfig(LinearCost((10.0, 0.0, 0.0, 0.0, 0.0)), SchedulerConfig(max_num_seqs=1), 100)
BY_QUEUE = Autoscaler(target=2.0, every=20.0, cold_start=40.0, window=60.0)
BURST = [TrafficRequest(0.1 * i, 8, 1) for i in range(10)]


def test_a_burst_by_hand():
    """One request at a time, 10 s each; ten come in the first second. Looks at 0 s, 20 s, ...

    20 s: two are served and 8 wait. 8 / 2 are 4 replicas in all, so 3 are started, and serve from 60 s on.
    Those that came before stay in the queue of the first replica: 6, 4, 2, 0 wait then, and 3, 2, 1, 1 replicas are wanted. So at
    80 s three are the most of the last 60 s, and one replica leaves, the others 20 and 40 s later.
    """
    late = [TrafficRequest(65.0 + i, 8, 1) for i in range(3)] + [TrafficRequest(400.0, 8, 1)]
    run, paid = serve_autoscaled([*BURST, *late], {"": TEN_SECONDS}, BY_QUEUE)
    assert run.choices == [0] * 10 + [1, 2, 3] + [0]
    assert [r.ttft for r in run.records[10:]] == [10.0] * 4
    assert paid == [(0.0, 420.0), (20.0, 120.0), (20.0, 100.0), (20.0, 80.0)]


def test_tokens_per_second_by_hand():
    """A request of 8 tokens each 10 s until 90 s: 0.8 tokens/s, and none waits. A replica for each 0.4: two from 20 s + 40 s on.
    120 s is the first look that wants one. At 160 s no look of the last 60 s wanted more."""
    scaler = replace(BY_QUEUE, metric="tokens", target=0.4)
    traffic = [TrafficRequest(10.0 * i, 8, 1) for i in range(10)] + [TrafficRequest(400.0, 8, 1)]
    assert serve_autoscaled(traffic, {"": TEN_SECONDS}, scaler)[1] == [(0.0, 420.0), (20.0, 160.0)]
    assert serve_autoscaled(traffic, {"": TEN_SECONDS}, BY_QUEUE)[1] == [(0.0, 420.0)]


def test_two_models_share_three_cards_by_hand():
    """Each has one; the third goes to the model whose queue grows first, from 20 s until 120 s, and then to the other."""
    other = [replace(r, arrival=300 + r.arrival, kind="b") for r in BURST] + [
        TrafficRequest(370.0, 8, 1, "b")
    ]
    run, paid = serve_autoscaled(
        [*BURST, *other], {"": TEN_SECONDS, "b": TEN_SECONDS}, replace(BY_QUEUE, most=3)
    )
    assert run.choices == [0] * 10 + [1] * 10 + [3]
    assert paid == [(0.0, 380.0), (0.0, 400.0), (20.0, 120.0), (320.0, 380.0)]


def test_a_day_has_a_quiet_and_a_busy_half():
    day = daily(draw_traffic("chat", 500, 1.0), rate=0.1, swing=0.8)
    times = np.array([r.arrival for r in day])
    assert len(day) == 8640 and (np.diff(times) >= 0).all() and times[-1] <= DAY
    counts, _ = np.histogram(times, bins=24, range=(0, DAY))
    assert counts[[0, 23]].max() < 0.3 * counts.mean() and counts[[11, 12]].min() > 1.6 * counts.mean()
    moved = [np.histogram([r.arrival for r in later(day, h)], 24, (0, DAY))[0] for h in (0, 8, 16)]
    assert (np.diff([r.arrival for r in later(day, 8)]) >= 0).all()
    assert abs(moved[1] - np.roll(counts, 8)).max() <= 1
    assert sum(moved).max() < 1.15 * sum(moved).mean()  # around the world it is always day


# ---------------------------------------------------------------------- routers


def request(*names):
    return TrafficRequest(0.0, 512 * len(names) + 10, 1, hash_ids=names)


def test_prefix_aware_chooses_as_vllm_router_does():
    """1,000 requests of the Mooncake trace (Apache 2.0), sent to vllm-router 0.1.17 with the policy cache_aware, in front of four
    servers that answer at once but for 15% of the requests, which they held, so that loads differ."""
    router = PrefixAware()
    with gzip.open(Path(__file__).with_name("vllm_router_0_1_17.jsonl.gz"), "rt") as lines:
        recorded = [json.loads(line) for line in lines]
    same = [router.choose(request(*r["hash_ids"]), r["loads"]) == r["chosen"] for r in recorded]
    assert len(same) == 1000 and sum(same) >= 990
