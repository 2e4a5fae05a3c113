"""Policies for the real vLLM, beside your own in my_engine/policy.py: `lab mine --in-vllm PYTHON --policy FILE:CLASS`."""

from typing import Any


class Fcfs:
    """First come, first served: vLLM's own order."""

    def order(self, waiting: list[Any]) -> list[Any]:
        return waiting

    def victim(self, running: list[Any]) -> Any:
        return running[-1]


class Priority(Fcfs):
    """The smallest number first, as under vLLM's --scheduling-policy priority."""

    def order(self, waiting: list[Any]) -> list[Any]:
        return sorted(waiting, key=lambda r: (r.priority, r.arrival_time, r.request_id))

    def victim(self, running: list[Any]) -> Any:
        return max(running, key=lambda r: (r.priority, r.arrival_time))


class LongestPrefix(Fcfs):
    """The longest cached prefix first (Zheng et al., "SGLang", 2024, section 3). A request without one may wait for long."""

    def order(self, waiting: list[Any]) -> list[Any]:
        return sorted(waiting, key=lambda r: -r.num_cached)


class ShortestPrompt(Fcfs):
    """The fewest tokens to compute first. A long request may wait for long."""

    def order(self, waiting: list[Any]) -> list[Any]:
        return sorted(waiting, key=lambda r: r.num_tokens - r.num_cached)


RIVALS = {
    "first come, first served": Fcfs,
    "priority": Priority,
    "longest cached prefix first": LongestPrefix,
    "fewest tokens to compute first": ShortestPrompt,
}
