"""Which replica gets the next request? Five rules, each a few lines.

A replica is one engine with one model; several with the same model behind one address are a fleet. The router in
front sees each request come, and knows how many requests every replica has in flight (its load). It chooses at
once, and the choice is final.

The prefix-aware rule is vllm-router's, with its constants. It never asks a replica what its cache holds: it remembers
which replica was given a prefix, and assumes that it is still there. (Version 0.1.17 of the router itself makes the same choices; a
test holds a recording of it beside ours.) The cache-aware rule is told: replicas publish what enters and leaves their caches.

Sources: vllm-project/router, src/policies/cache_aware.rs and src/tree.rs; NVIDIA Dynamo, "KV cache routing", for a cost in blocks.
(SGLang's router, where the prefix-aware rule comes from, sends a request with no known prefix to the replica with the smallest
record instead of the least loaded one.)
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from phase4_scheduler.features.kv_events import BlockRemoved, BlockStored, KVEvent
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


class LeastPerSpeed:
    """For replicas on different cards: the fewest requests for its speed, this one included.

    Args:
        speeds: of the replicas, in any unit; a decode step is bound by the card's memory bandwidth.
    """

    def __init__(self, speeds: Sequence[float]) -> None:
        self.speeds = speeds

    def choose(self, request: TrafficRequest, loads: Sequence[int]) -> int:
        return min(range(len(loads)), key=lambda i: (loads[i] + 1) / self.speeds[i])


class PrefixAware:
    """Where the beginning of the prompt went before, unless that replica is overloaded.

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


class CacheAware:
    """The replica with the least to do: the blocks of the prompt that it has to compute, and for each request in flight a tenth of
    what a prompt needed on average. Among equals: the one with fewer requests, then the one whose cache holds less.

    What a cache holds, the replica says in its KV events (features/kv_events.py): after an eviction the router knows of it.

    Attributes:
        held: by replica, how many blocks of its cache have each hash.
    """

    load_weight = 0.1  # of a request in flight, in prompts: of most of them the prompt is computed already

    def __init__(self) -> None:
        self.held: defaultdict[int, Counter] = defaultdict(Counter)
        self._computed, self._requests = 0, 0

    def observe(self, replica: int, events: Iterable[KVEvent]) -> None:
        """Take in what has happened to a replica's cache."""
        held = self.held[replica]
        for event in events:
            if isinstance(event, BlockStored):
                held.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                for name in event.block_hashes:
                    held[name] -= 1
                    if not held[name]:
                        del held[name]
            else:
                held.clear()

    def choose(self, request: TrafficRequest, loads: Sequence[int]) -> int:
        missing = [len(request.hash_ids) - self.known_blocks(request, i) for i in range(len(loads))]
        each = self.load_weight * self._computed / max(1, self._requests)
        cost = [blocks + each * load for blocks, load in zip(missing, loads, strict=True)]
        chosen = min(range(len(loads)), key=lambda i: (cost[i], loads[i], len(self.held[i])))
        self._computed, self._requests = self._computed + missing[chosen], self._requests + 1
        return chosen

    def known_blocks(self, request: TrafficRequest, replica: int) -> int:
        """How many blocks of the prompt, from its beginning on, are in a replica's cache."""
        held = self.held[replica]
        return sum(1 for _ in itertools.takewhile(held.__getitem__, request.hash_ids))


ROUTERS = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix-aware": PrefixAware,
    "cache-aware": CacheAware,
}
