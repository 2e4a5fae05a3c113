"""Policies: the order of the waiting queue, and which running request is preempted when the blocks run out.

The scheduler does not know which policy it uses. No queue is searched from end to end, because ten thousand requests may wait.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence

from phase4_scheduler.engine.request import Request


class Fcfs(OrderedDict[Request, None]):
    """First come, first served. A policy is the queue itself: the waiting requests in the order of admission.

    A policy of your own is such a collection, too (`len`, iteration), with these methods.
    """

    def push(self, request: Request) -> None:
        """Add a request that has just arrived to the queue."""
        self[request] = None

    def put_back(self, request: Request) -> None:
        """Return a preempted request to the front of the queue."""
        self[request] = None
        self.move_to_end(request, last=False)

    def head(self) -> Request:
        """The request to be admitted next."""
        return next(iter(self))

    def remove(self, request: Request) -> None:
        del self[request]

    def victim(self, running: Sequence[Request]) -> Request:
        """The request to preempt: the one admitted last; `running` is in the order of admission."""
        return running[-1]


def urgency(request: Request) -> tuple[int, float, str]:
    """Sorts requests: the most urgent first, then the one that arrived first."""
    return request.priority, request.arrival_time, request.request_id


class Priority(list[Request]):
    """The most urgent request first, in a sorted list. The least urgent one is preempted and returns to its place in the list."""

    def push(self, request: Request) -> None:
        insort(self, request, key=urgency)

    put_back = push

    def head(self) -> Request:
        return self[0]

    def remove(self, request: Request) -> None:
        del self[bisect_left(self, urgency(request), key=urgency)]

    def victim(self, running: Sequence[Request]) -> Request:
        # Of equals the one admitted first, as in vLLM: the answers to one prompt arrive at the same time.
        return max(running, key=lambda request: (request.priority, request.arrival_time))


POLICIES: dict[str, type] = {"fcfs": Fcfs, "priority": Priority}


def find_policy(policy: str | type) -> type:
    """A policy by its name, or one that is given. Raises ValueError: no such policy."""
    found = POLICIES.get(policy) if isinstance(policy, str) else policy
    if not callable(found):
        raise ValueError(f"unknown policy {policy!r}: use {' or '.join(POLICIES)}, or a class like `Fcfs`")
    return found
