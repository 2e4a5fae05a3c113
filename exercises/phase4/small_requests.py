"""Requests and blocks without a model, for the exercises of phase 4."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from exercises.judging.verdict import NotYet

NAMES = ("bob", "alice", "carol", "dan", "erin", "frank", "grace", "heidi")
Plan = list[tuple[str, int]]


@dataclass(eq=False)
class SmallRequest:
    """A request without a model: a name and two numbers."""

    name: str
    num_tokens: int
    num_computed_tokens: int = 0

    def __repr__(self) -> str:
        return f"{self.name} {self.num_computed_tokens}/{self.num_tokens}"


class Pool:
    """Blocks by their number alone. A call that cannot be satisfied changes nothing and returns False."""

    def __init__(self, num_blocks: int, block_size: int = 4) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.held: dict[Any, int] = {}  # request -> blocks

    @property
    def num_free(self) -> int:
        return self.num_blocks - sum(self.held.values())

    def allocate(self, request: Any, num_tokens: int, must_fit: int = 0) -> bool:
        """Make room for the first `num_tokens` tokens; refuse unless `must_fit` tokens would fit as well."""
        mine = self.held.get(request, 0)
        missing = max(0, -(-num_tokens // self.block_size) - mine)
        if max(missing, -(-must_fit // self.block_size) - mine) > self.num_free:
            return False
        self.held[request] = mine + missing
        return True

    def free(self, request: Any) -> None:
        self.held.pop(request, None)


def as_plan(result: Iterable[tuple[Any, int]]) -> Plan:
    """[(request, tokens), ...] with names for the requests."""
    try:
        return [(request.name, n) for request, n in result]
    except (TypeError, ValueError, AttributeError):
        says = "Return a list of pairs: a request and its number of tokens."
        got, expected = repr(result)[:200], "[(request, tokens), ...]"
        raise NotYet("wrong-type", says, got=got, expected=expected) from None


def step_of_plan(plan: Callable) -> Callable:
    """The step of exercise 4.2 from a plan without memory, plan(running, waiting, budget, max_num_seqs): it allocates the blocks."""

    def step(running: list, waiting: deque, budget: int, max_num_seqs: int, pool: Any) -> list:
        chosen = list(plan(list(running), list(waiting), budget, max_num_seqs))
        for request, n in chosen:
            pool.allocate(request, request.num_computed_tokens + n)
            if request in waiting:
                waiting.remove(request)
                running.append(request)
        return chosen

    return step
