"""Which replica gets the next request? Four rules, each a few lines.

A replica is one engine with one model; several with the same model behind one address are a fleet. The router in
front sees each request come, and knows how many requests every replica has in flight (its load). It chooses at
once, and the choice is final.

The prefix-aware rule is vllm-router's, with its constants. It never asks a replica what its cache holds: it remembers
which replica was given a prefix, and assumes that it is still there. (Version 0.1.17 of the router itself makes the same choices; a
test holds a recording of it beside ours.)

Sources: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001); vllm-project/router,
src/policies/cache_aware.rs and src/tree.rs. (SGLang's router, where the rule comes from, sends a request with no
known prefix to the replica with the smallest record instead of the least loaded one.)
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from phase4_scheduler.simulator.traffic import TrafficRequest


class Router(Protocol):
    def choose(self, request: TrafficRequest, loads: Sequence[int]) -> int:
        """The replica for a request, by the requests that each has in flight."""


def least(loads: Sequence[int]) -> int:
    """The first of those with the fewest requests."""
    return min(range(len(loads)), key=loads.__getitem__)


class RoundRobin:
    """One after another."""

    def __init__(self) -> None:
        self.turn = -1

    def choose(self, request: TrafficRequest, loads: Sequence[int]) -> int:
        self.turn = (self.turn + 1) % len(loads)
        return self.turn


class LeastLoaded:
    """The replica with the fewest requests."""

    def choose(self, request: TrafficRequest, loads: Sequence[int]) -> int:
        return least(loads)


class PowerOfTwo:
    """Two replicas by chance, and of them the one with fewer requests: nearly as even as asking all."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)

    def choose(self, request: TrafficRequest, loads: Sequence[int]) -> int:
        if len(loads) == 1:
            return 0
        one, other = self.rng.choice(len(loads), size=2, replace=False).tolist()
        return one if loads[one] <= loads[other] else other


class PrefixAware:
    """Where the beginning of the prompt went before, unless that replica drowns.

    1. If the loads are far apart, the least loaded one.
    2. Else, if more than `cache_threshold` of the prompt is known: of the replicas that were given that prefix, the least loaded.
    3. Else the least loaded one.

    Its record of prefixes grows for ever; vllm-router forgets the oldest ones every two minutes.
    """

    cache_threshold = 0.3  # share of the prompt's blocks that must be known
    # Loads are far apart if the highest is above the lowest by more than so many requests, and by more than so many times.
    balance_abs_threshold, balance_rel_threshold = 64, 1.5

    def __init__(self) -> None:
        self.given: dict[int, set[int]] = {}  # hash id of a block -> the replicas that were given it

    def choose(self, request: TrafficRequest, loads: Sequence[int]) -> int:
        low, high = min(loads), max(loads)
        far_apart = high - low > self.balance_abs_threshold and high > low * self.balance_rel_threshold
        known = self.known_blocks(request)
        if not far_apart and known > self.cache_threshold * len(request.hash_ids):
            replica = min(sorted(self.given[request.hash_ids[known - 1]]), key=loads.__getitem__)
        else:
            replica = least(loads)
        for hash_id in request.hash_ids:
            self.given.setdefault(hash_id, set()).add(replica)
        return replica

    def known_blocks(self, request: TrafficRequest) -> int:
        """How many blocks of the prompt, from its beginning on, some replica was given before."""
        for i, hash_id in enumerate(request.hash_ids):
            if hash_id not in self.given:
                return i
        return len(request.hash_ids)


ROUTERS = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "power-of-two": PowerOfTwo,
    "prefix-aware": PrefixAware,
}
