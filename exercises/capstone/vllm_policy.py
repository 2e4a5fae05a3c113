"""A learner's `Policy` inside the real vLLM 0.32:

    vllm serve MODEL --no-async-scheduling --scheduler-cls exercises.capstone.vllm_policy.PolicyScheduler

It decides synchronously. So serve with --no-async-scheduling what you compare it with, too: vLLM's default on a GPU is asynchronous.

It runs in vLLM's own environment, with the repository in PYTHONPATH, and imports nothing of the course. The environment variable
LAB_POLICY is FILE:CLASS, such as my_engine/policy.py:Policy.

How it gets in. vLLM asks its queue for the next request: `PolicyQueue` asks the policy. Under "priority" vLLM preempts the request
with the largest `priority`: here that is 1 for the policy's victim, 0 for all others, asked when it is needed.

With `Fcfs` and `Priority` of policies.py every step equals vLLM's own, on 50 and 48 recorded workloads (vllm_replay.py).

Sources: vllm/v1/core/sched/scheduler.py, request_queue.py.
"""

import os
import runpy
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from vllm.v1.core.sched.request_queue import FCFSRequestQueue, SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request


class Seen:
    """A request as a policy sees it."""

    def __init__(self, request: Request, scheduler: Scheduler) -> None:
        self.request, self.scheduler = request, scheduler
        self.request_id, self.arrival_time = request.request_id, request.arrival_time
        self.num_tokens, self.priority = request.num_tokens, vars(request)["priority"]

    @property
    def num_cached(self) -> int:
        """Its tokens in the prefix cache right now."""
        manager = self.scheduler.kv_cache_manager
        if not manager.prefix_cache_lookup_enabled(self.request):
            return 0
        hashes = self.request.block_hashes
        return manager.coordinator.find_longest_cache_hit(hashes, self.request.num_tokens - 1)[1]


class PolicyRequest(Request):
    """A request whose `priority` says whether it is the policy's victim. What the user gave is in `vars(request)`."""

    scheduler: "PolicyScheduler"

    @property
    def priority(self) -> int:
        return int(self.scheduler.victim() is self)

    @priority.setter
    def priority(self, value: int) -> None:
        vars(self)["priority"] = value


class PolicyQueue(FCFSRequestQueue):
    """The waiting requests in the order of arrival, preempted ones before all. The policy says which is next."""

    scheduler: "PolicyScheduler"
    next: Request | None = None  # between a look and the request that is taken nothing may change

    def __iter__(self) -> Iterator[Request]:
        seen = [Seen(request, self.scheduler) for request in deque.__iter__(self)]
        return iter([each.request for each in self.scheduler.own_policy.order(seen)])

    def peek_request(self) -> Request:
        if not self:
            raise IndexError("peek from an empty queue")
        self.next = next(iter(self))
        return self.next

    def pop_request(self) -> Request:
        request = self.next if self.next in self else self.peek_request()
        self.remove(request)
        return request

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in set(requests) & set(self):
            self.remove(request)


class PolicyScheduler(Scheduler):
    """vLLM's scheduler; the order of its queue and the victims of its preemptions are the policy's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        file, _, name = os.environ["LAB_POLICY"].rpartition(":")
        self.own_policy = runpy.run_path(file)[name]()
        self.policy = SchedulingPolicy.PRIORITY  # the branch that asks each request
        self.waiting = PolicyQueue()
        self.waiting.scheduler = self

    def add_request(self, request: Request) -> None:
        request.__class__, request.scheduler = PolicyRequest, self
        super().add_request(request)

    def victim(self) -> Request:
        return self.own_policy.victim([Seen(request, self) for request in self.running]).request
