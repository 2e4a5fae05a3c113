"""Policies: the order of the waiting queue, and which running request is preempted when the blocks run out.

The scheduler asks a policy for a queue and for a victim, and does not know which policy it has. Nothing here takes longer
because more requests wait (but for the logarithm in a heap).
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Sequence
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
        _refuse_twin(request, self._requests)
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


def _refuse_twin(request: Request, waiting: Container[str]) -> None:
    if request.request_id in waiting:
        raise ValueError(f"a request {request.request_id!r} is waiting already: give each an id of its own")


def urgency(request: Request) -> tuple[int, float, str]:
    """Sorts requests: the most urgent first, then the one that arrived first."""
    return request.priority, request.arrival_time, request.request_id


class PriorityQueue:
    """The most urgent first. A preempted request goes back to its place.

    A heap finds its smallest item quickly, but cannot give up one in its middle. So a removed request
    stays in the heap as a ghost, until it comes to the top or ghosts are the majority.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, str], int]] = []
        self._alive: dict[int, Request] = {}  # by ticket; a request gets a new one each time it queues up
        self._tickets: dict[str, int] = {}
        self._next_ticket = 0

    def push(self, request: Request) -> None:
        _refuse_twin(request, self._tickets)
        ticket = self._next_ticket
        self._next_ticket += 1
        self._alive[ticket] = request
        self._tickets[request.request_id] = ticket
        heapq.heappush(self._heap, (urgency(request), ticket))

    put_back = push

    def head(self) -> Request:
        while self._heap[0][1] not in self._alive:
            heapq.heappop(self._heap)
        return self._alive[self._heap[0][1]]

    def remove(self, request: Request) -> None:
        del self._alive[self._tickets.pop(request.request_id)]
        if len(self._heap) > 2 * len(self._alive) + 64:
            self._heap = [item for item in self._heap if item[1] in self._alive]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._alive)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._alive.values(), key=urgency))


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
        return max(running, key=urgency)


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
