"""The scheduler: which request computes how many tokens in the next step, and in which blocks.

`step` (exercise 4.2) decides. It sees a `Turn` for each request, which brings in prefix hits, chunks and thresholds.
"""

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

from exercises.capstone.parts import course_part

from .blocks import BlockManager

step = course_part("p4e2_preemption")
tokens_now = course_part("p4e3_chunks")


@dataclass(eq=False)
class Request:
    """One sequence of tokens that grows: prompt and answer, of which `num_computed` went through the model."""

    name: str
    token_ids: list[int]
    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    num_named: int = 0
    finish_reason: str | None = None  # "stop", "length" or "abort"

    def __post_init__(self) -> None:
        self.token_ids = list(self.token_ids)
        self.num_prompt_tokens = len(self.token_ids)


@dataclass(frozen=True)
class Limits:
    """`threshold`: the most tokens of one request in a step while there are others; 0: no limit."""

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int = 1024
    chunked: bool = True
    threshold: int = 0


class Scheduled(NamedTuple):
    """A request in a step: its tokens number `first` to `first + num_tokens - 1` go through the model."""

    request: Request
    first: int
    num_tokens: int

    @property
    def samples(self) -> bool:
        return self.first + self.num_tokens == len(self.request.token_ids)


class Turn:
    """A request as `step` sees it: how far it is, and how far it may get in this step."""

    def __init__(self, request: Request, scheduler: "Scheduler") -> None:
        self.request, self.scheduler = request, scheduler

    @property
    def num_computed_tokens(self) -> int:
        """Of a request that waits: what the prefix cache holds of it right now."""
        manager, request = self.scheduler.manager, self.request
        return request.num_computed if request.blocks else len(manager.find(request)) * manager.block_size

    @num_computed_tokens.setter
    def num_computed_tokens(self, value: int) -> None:
        """`Scheduler.free` has set it to 0."""

    @property
    def num_tokens(self) -> int:
        computed = self.num_computed_tokens
        return computed + self.at_most(computed, self.scheduler.limits.max_num_batched_tokens, chunked=True)

    def at_most(self, computed: int, budget: int, chunked: bool) -> int:
        lag = SimpleNamespace(num_tokens=len(self.request.token_ids), num_computed_tokens=computed)
        return tokens_now(lag, budget, self.scheduler.limits.threshold, self.scheduler.alone, chunked)


class Scheduler:
    """Decides steps until no request is left. `preempted`: those that had to make room in the last step."""

    def __init__(self, limits: Limits, manager: BlockManager) -> None:
        self.limits, self.manager = limits, manager
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.preempted: list[Request] = []
        self.alone = True

    def schedule(self) -> list[Scheduled]:
        """Decide the next step. Blocks are given out, and `num_computed` advances, right here."""
        limits, before = self.limits, list(self.running)
        self.alone = len(self.running) + len(self.waiting) <= 1
        running = [Turn(request, self) for request in self.running]
        waiting = deque(Turn(request, self) for request in self.waiting)
        plan = [*step(running, waiting, limits.max_num_batched_tokens, limits.max_num_seqs, pool=self)]
        self.running = [turn.request for turn in running]
        self.waiting = deque(turn.request for turn in waiting)
        self.preempted = [request for request in before if request not in self.running]
        scheduled = [Scheduled(turn.request, turn.request.num_computed, n) for turn, n in plan]
        for request, _, n in scheduled:
            request.num_computed += n
        return scheduled

    def allocate(self, turn: Turn, num_tokens: int, must_fit: int = 0) -> bool:
        """Room for the first `num_tokens` tokens. `must_fit` is given for a request that waits: all of it must fit."""
        request, computed = turn.request, turn.num_computed_tokens
        if must_fit and not turn.at_most(computed, num_tokens - computed, self.limits.chunked):
            return False  # its prompt may not be cut
        if not self.manager.allocate(request, num_tokens, len(request.token_ids) if must_fit else 0):
            return False
        request.num_computed = computed
        return True

    def free(self, turn: Turn) -> None:
        """Take everything from a request; it will be computed again."""
        request = turn.request
        self.manager.free(request, num_filled=request.num_computed // self.manager.block_size)
        request.num_computed = 0

    def update(self, grown: list[Request], token_ids: list[int]) -> None:
        """Append its new token to each request that sampled one."""
        for request, token in zip(grown, token_ids, strict=True):
            request.token_ids.append(token)
            num_answer = len(request.token_ids) - request.num_prompt_tokens
            if token in request.stop_token_ids:
                self.finish(request, "stop")
            elif num_answer == request.max_tokens or len(request.token_ids) >= self.limits.max_model_len:
                self.finish(request, "length")

    def finish(self, request: Request, reason: str) -> None:
        """End a request, wherever it is. Its blocks are free again."""
        (self.running if request in self.running else self.waiting).remove(request)
        request.finish_reason = reason
        self.manager.free(request)
