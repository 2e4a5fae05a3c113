"""Policies: the order of the waiting queue, and which running request is preempted when the blocks run out.

The scheduler asks a policy for a queue and for a victim, and does not know which policy it has. No queue is searched from end
to end: ten thousand requests may wait.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from phase4_scheduler.engine.request import Request


class WaitingQueue(Protocol):
    def push(self, request: Request) -> None: ...
    def put_back(self, request: Request) -> None: ...
    def head(self) -> Request: ...
    def remove(self, request: Request) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...


class FcfsQueue:
    """First come, first served. A preempted request goes back to the very front."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def push(self, request: Request) -> None:
        self._requests[request.request_id] = request

    def put_back(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)

    def head(self) -> Request:
        return next(iter(self._requests.values()))

    def remove(self, request: Request) -> None:
        del self._requests[request.request_id]

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())


def urgency(request: Request) -> tuple[int, float, str]:
    """Sorts requests: the most urgent first, then the one that arrived first."""
    return request.priority, request.arrival_time, request.request_id


class PriorityQueue:
    """The most urgent first, in a sorted list. A preempted request goes back to its place."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def push(self, request: Request) -> None:
        insort(self._requests, request, key=urgency)

    put_back = push

    def head(self) -> Request:
        return self._requests[0]

    def remove(self, request: Request) -> None:
        del self._requests[bisect_left(self._requests, urgency(request), key=urgency)]

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class Policy(Protocol):
    """Attributes: make_queue: makes the waiting queue."""

    make_queue: Callable[[], WaitingQueue]

    def victim(self, running: Sequence[Request]) -> Request:
        """The request to preempt; `running` is in the order of admission."""
        ...


class Fcfs:
    """First come, first served; the last to come is preempted."""

    make_queue = FcfsQueue

    def victim(self, running: Sequence[Request]) -> Request:
        return running[-1]


class Priority:
    """The most urgent first; the least urgent is preempted."""

    make_queue = PriorityQueue

    def victim(self, running: Sequence[Request]) -> Request:
        # Of equals the one admitted first, as in vLLM: the answers to one prompt arrive at the same time.
        return max(running, key=lambda request: (request.priority, request.arrival_time))


POLICIES: dict[str, type[Policy]] = {"fcfs": Fcfs, "priority": Priority}


def find_policy(policy: str | Policy) -> Policy:
    """A policy by its name, or one that is given. Raises ValueError: no such policy."""
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(f"unknown policy {policy!r}: use {' or '.join(POLICIES)}, or give a Policy")
        return POLICIES[policy]()
    if not (callable(getattr(policy, "make_queue", None)) and callable(getattr(policy, "victim", None))):
        raise ValueError(f"policy is {policy!r}: it needs make_queue() and victim(running)")
    return policy
