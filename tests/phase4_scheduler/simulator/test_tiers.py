"""Levels of KV memory and replicas on different cards, by hand: a second per token, blocks of 16 tokens and 1 GB."""

import pytest

from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.cost_model import LinearCost
from phase4_scheduler.simulator.fleet import serve_replicas
from phase4_scheduler.simulator.routers import LeastLoaded, LeastPerSpeed, RoundRobin
from phase4_scheduler.simulator.tiers import Tier, TieredReplica
from phase4_scheduler.simulator.traffic import TrafficRequest
from phase4_scheduler.simulator.virtual_time import ReplicaConfig

# Four blocks beside the null block: one request of 50 + 1 tokens fills them.
CONFIG = ReplicaConfig(LinearCost((0.0, 1.0, 0.0, 0.0, 0.0)), SchedulerConfig(), 5)
A, B = (1, 2, 3), (4, 5, 6)


def serve(texts, *stacks):
    replicas = [TieredReplica.over(CONFIG, tiers, kv_bytes=1e9 / 16) for tiers in stacks]
    traffic = [TrafficRequest(1000.0 * i, 50, 1, hash_ids=text) for i, text in enumerate(texts)]
    run = serve_replicas(traffic, replicas, RoundRobin())
    return [r.ttft for r in run.records], [r.num_cached_tokens for r in run.records]


def test_a_prefix_that_the_gpu_lost_is_loaded_where_that_is_faster():
    """B evicts A. Three blocks come in 1 s each while two tokens are computed in 2 s."""
    memory = Tier("main memory", 100, 1.0)
    assert serve([A, B, A, B], [memory]) == ([50, 50, 3, 3], [0, 0, 48, 48])
    assert serve([A, B, A], [Tier("slow", 100, 1 / 15)]) == ([50, 50, 45], [0, 0, 48])
    assert serve([A, B, A], [Tier("slower than computing", 100, 1 / 17)]) == ([50, 50, 50], [0, 0, 0])
    assert serve([A, A], [Tier("main memory", 100, 1.0)]) == ([50, 2], [0, 48])  # the GPU has them


def test_a_full_level_drops_the_oldest_and_the_next_one_still_has_them():
    stack = [Tier("main memory", 4, 1.0), Tier("SSD", 100, 0.5)]
    replica = TieredReplica.over(CONFIG, stack, kv_bytes=1e9 / 16)
    traffic = [TrafficRequest(1000.0 * i, 50, 1, hash_ids=text) for i, text in enumerate([A, B, A])]
    run = serve_replicas(traffic, [replica], LeastLoaded())
    assert replica.scheduler.connector.loaded == {"main memory": 16, "SSD": 32}  # the beginning of A stayed
    assert run.records[2].ttft == pytest.approx(1 + 2 + 2)
    assert len(stack[0].held) == 4 and len(stack[1].held) == 6


def test_replicas_find_in_a_shared_level_what_others_computed():
    store = Tier("store", 100, 1.0)
    assert serve([A, A], [store], [store])[0] == [50, 3]
    assert serve([A, A], [Tier("own", 100, 1.0)], [Tier("own", 100, 1.0)])[0] == [50, 50]


def test_a_router_counts_requests_per_speed():
    """Speeds 3 and 1: the fast one takes requests until a fourth would be more per speed than the first of the other."""
    choices = [([0, 0], 0), ([2, 0], 0), ([3, 0], 1), ([3, 1], 0), ([6, 1], 1)]
    assert [(loads, LeastPerSpeed([3, 1]).choose(None, loads)) for loads, _ in choices] == choices
