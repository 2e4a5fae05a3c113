"""Grader of exercise 4.2: preemption."""

import random
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from exercises.grading import Diagnoses, Exercise, guard
from exercises.phase4.small_requests import NAMES, Plan, Pool, SmallRequest, as_plan, show_plan

SAYS = Diagnoses.of("p4e2_preemption")


def _step(running, waiting, budget, seats, pool):
    """The course's rules, as in Scheduler._schedule_running and admit_waiting."""
    plan, preempted, index = [], [], 0
    while index < len(running) and budget > 0:
        request = running[index]
        n = min(request.num_tokens - request.num_computed_tokens, budget)
        while not pool.allocate(request, request.num_computed_tokens + n):
            victim = running.pop()
            pool.free(victim)
            victim.num_computed_tokens = 0
            waiting.appendleft(victim)
            preempted.append(victim)
            if victim is request:
                return plan, preempted
        plan.append((request, n))
        budget, index = budget - n, index + 1
    while not preempted and waiting and budget > 0 and len(running) < seats:
        request = waiting[0]
        n = min(request.num_tokens - request.num_computed_tokens, budget)
        if not pool.allocate(request, request.num_computed_tokens + n, must_fit=request.num_tokens):
            break
        running.append(waiting.popleft())
        plan.append((request, n))
        budget -= n
    return plan, preempted


class _WatchedPool(Pool):
    """Notes whether a waiting request was to get blocks after a preemption."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.at_first: list[SmallRequest] = []
        self.freed: list[SmallRequest] = []
        self.asked_too_late: SmallRequest | None = None
        self.served_outside: SmallRequest | None = None  # as one of those that run, after its preemption

    def allocate(self, request: SmallRequest, num_tokens: int, must_fit: int = 0) -> bool:
        if self.freed and (request in self.freed or request not in self.at_first):
            self.asked_too_late = request
        if request in self.freed and not must_fit:
            self.served_outside = self.served_outside or request
        return super().allocate(request, num_tokens, must_fit)

    def free(self, request: SmallRequest) -> None:
        self.freed.append(request)
        super().free(request)


class _Scene:
    """Which requests run and wait, with which blocks; made anew for each call."""

    def __init__(
        self, running: list[tuple[int, int]], waiting: list[int], free: int, budget: int, seats: int
    ) -> None:
        names = iter(NAMES)
        self.running = [SmallRequest(next(names), tokens, computed) for tokens, computed in running]
        self.waiting = deque(SmallRequest(next(names), tokens) for tokens in waiting)
        self.pool = _WatchedPool(10**6)
        self.pool.at_first = list(self.running)
        for v in self.running:
            self.pool.allocate(v, v.num_computed_tokens)
        self.pool.num_blocks = sum(self.pool.held.values()) + free
        self.before, self.computed = list(self.running), {v.name: v.num_computed_tokens for v in self.running}
        self.budget, self.seats = budget, seats
        self.told = (
            f"running {self.running}, waiting {list(self.waiting)} (computed/tokens), {free or 'no'} free "
            f"block{'s' * (free != 1)} of 4 tokens, budget {budget}, {seats} seat{'s' * (seats > 1)}"
        )

    def args(self) -> tuple:
        return self.running, self.waiting, self.budget, self.seats, self.pool

    @property
    def gone(self) -> list[SmallRequest]:
        """Those that ran before the step and do not run after it, in the order of their preemption."""
        gone = [v for v in self.before if v not in self.running]
        freed = self.pool.freed
        return sorted(gone, key=lambda v: freed.index(v) if v in freed else len(freed))

    @property
    def admitted(self) -> list[str]:
        return [v.name for v in self.running if v not in self.before]

    @property
    def queue(self) -> list[str]:
        return [v.name for v in self.waiting]

    @property
    def blocks(self) -> dict[str, int]:
        return {v.name: n for v, n in self.pool.held.items() if n}

    def state(self, plan: Plan) -> str:
        return f"computed {show_plan(plan)}; running {[v.name for v in self.running]}, waiting {self.queue}"


def grade_preemption(step: Callable) -> str:
    rng = random.Random(2)
    shapes = [
        ([(9, 8), (8, 7)], [5], 0, 16, 4),
        ([(9, 8), (9, 8)], [3], 0, 16, 4),
        ([(9, 8), (5, 4), (9, 8)], [4, 4], 1, 16, 8),
        ([(30, 8), (5, 4), (5, 4)], [4], 1, 20, 8),
        ([(5, 4)], [20, 3], 3, 16, 4),
        ([(6, 5)], [7, 3], 4, 16, 4),
        ([(6, 5), (7, 6)], [3], 4, 16, 2),
    ]
    for _ in range(300):
        running = []
        for _ in range(rng.randint(1, 4)):
            computed = rng.choice((4, 8, 8, 12, rng.randint(1, 14)))
            running.append((computed + rng.choice((1, 1, 1, 9)), computed))
        waiting = [rng.randint(1, 20) for _ in range(rng.randint(0, 3))]
        shapes.append(
            (running, waiting, rng.randint(0, 5), rng.randint(2, 30), len(running) + rng.randint(0, 2))
        )
    for shape in shapes:
        mine, course = _Scene(*shape), _Scene(*shape)
        expected, preempted = _step(*course.args())
        got = as_plan(guard(step, *mine.args(), tried=mine.told))
        _judge_step(mine, course, got, as_plan(expected), [v.name for v in preempted])
    return f"{len(shapes)} steps: some by hand, others at random; which requests run, which wait, how many blocks each holds."


def _judge_step(mine: _Scene, course: _Scene, got: Plan, expected: Plan, preempted: list[str]) -> None:
    """Look first at those that were preempted, then at those that were admitted, then at all the rest."""
    state, right = mine.state(got), course.state(expected)

    def fail(diagnosis: str, a: Any = state, b: Any = right, **words: Any) -> NoReturn:
        raise SAYS.no(diagnosis, mine.told, a, b, **words)

    if nothing := [name for name, n in got if n <= 0]:
        fail("parts-of-nothing", who=nothing[0])
    _judge_leaving(mine, course, got, preempted, fail)
    if sum(n for _, n in got) > mine.budget:
        fail("budget-per-request")
    if len(mine.admitted) > len(course.admitted):
        if len(mine.running) > mine.seats:
            fail("seats-ignored")
        if mine.admitted[0] != [*course.admitted, *course.queue][0]:
            fail("jumps-the-queue")
        fail("admits-what-does-not-fit", who=mine.admitted[len(course.admitted)])
    if idle := [name for name in mine.admitted if name not in dict(got)]:
        fail("admitted-and-idle", who=idle[0])
    if got != expected or mine.queue != course.queue:
        fail("wrong-result")
    for v in mine.running:
        if v.num_computed_tokens != (before := mine.computed.get(v.name, 0)):
            fail("moves-computed-on", v.num_computed_tokens, before, who=v.name)
    if mine.blocks != course.blocks:
        fail("blocks-for-later", f"blocks held: {mine.blocks}", f"{course.blocks}")


def _judge_leaving(mine: _Scene, course: _Scene, got: Plan, preempted: list[str], fail: Callable) -> None:
    gone = mine.gone
    names = [v.name for v in gone]
    for v in gone:
        if v not in mine.waiting:
            fail("victim-lost", who=v.name)
    outside = mine.pool.served_outside
    if outside in gone:
        fail("serves-a-victim", who=outside.name)
    if preempted and not gone:
        fail("none-preempted")
    if preempted and preempted[0] not in names:
        fail("wrong-victim", who=names[0], last=preempted[0])
    for v in gone:
        if n := v.num_computed_tokens:
            field = f"{v.name}.num_computed_tokens"
            fail("keeps-computed", f"{field} = {n}", f"{field} = 0", who=v.name, n=n)
        if v.name in dict(got):
            fail("computes-without-blocks", who=v.name)
        if v in mine.pool.held:
            fail("blocks-not-freed", who=v.name)
    late = mine.pool.asked_too_late
    if preempted and (late or mine.admitted):
        who = late.name if late else mine.admitted[0]
        fail("admits-after-preemption", f"{who} is to get blocks; {mine.state(got)}")
    if len(gone) > len(preempted):
        fail("preempted-for-nothing", who=names[0])
    if gone and mine.queue != course.queue:
        tail = mine.queue[-len(gone) :]
        if tail in (names, names[::-1]) and len(mine.queue) > len(gone):
            fail("victim-at-the-tail")
        fail("queue-out-of-order")


EXERCISES = [
    Exercise("p4e2_preemption", ("step",), grade_preemption),
]
