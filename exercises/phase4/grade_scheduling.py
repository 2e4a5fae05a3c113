"""Graders of exercises 4.1 to 4.3: a step's budget, preemption, a long prompt in pieces."""

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from exercises.judging.judge import Exercise, When
from exercises.phase4.small_requests import NAMES, Pool, SmallRequest, as_plan

# ---------------------------------------------------------------------- 4.1 one step

LAG = "request.num_tokens - request.num_computed_tokens"
STOPS = "if room == 0 or budget == 0:\n            break"
ONE_STEP = Exercise(
    "p4e1_one_step",
    share_budget={
        "budget-per-request": {"budget -= n": "pass"},
        "over-the-budget": (
            {f"min({LAG}, budget)": LAG},
            {f"min({LAG}, budget)\n        plan": f"{LAG}\n        plan"},
        ),
        "lag-ignores-computed": {LAG: "request.num_tokens"},
        "waiting-first": {
            "in running:": "in waiting[: max_num_seqs - len(running)]:",
            "in waiting:": "in running:",
            "if room == 0 or": "if",
        },
        "one-token-for-running": {"budget)\n        if n": "budget, 1)\n        if n"},
        "limit-ignored": {"if room == 0 or": "if"},
        "running-not-counted": {"max_num_seqs - len(running)": "max_num_seqs"},
        "parts-of-nothing": {"if n > 0:": "if True:", " or budget == 0": ""},
        "jumps-the-queue": {STOPS: f"if room == 0 or {LAG} > budget:\n            continue"},
        "whole-prompts-only": {STOPS: f"if room == 0 or {LAG} > budget:\n            break"},
        "idle-not-counted": {"room == 0": "len(plan) == max_num_seqs"},
    },
)


@ONE_STEP.grader
def grade_one_step(share_budget: Callable) -> None:
    rng = random.Random(1)
    v = SmallRequest
    cases: list[tuple] = [
        ([v("bob", 10, 9), v("carol", 5, 4)], [v("alice", 37), v("dan", 3)], 16, 4),
        ([v("bob", 10, 9), v("alice", 37, 14)], [v("dan", 3)], 16, 4),
        ([v("bob", 10, 9), v("carol", 5, 4)], [v("alice", 4), v("dan", 3)], 16, 3),
        ([v("bob", 10, 10), v("carol", 5, 4)], [], 16, 3),
        ([], [], 16, 3),
        ([v("bob", 10, 9)], [v("alice", 37, 32), v("dan", 3)], 16, 4),  # its beginning is computed already
    ]
    for _ in range(150):
        names = iter(NAMES)
        lengths = rng.choices(range(2, 40), k=rng.randint(0, 3))
        running = [v(next(names), n, n - rng.choice((0, 1, 1, 1, min(n, 12)))) for n in lengths]
        waiting = [v(next(names), rng.randint(1, 30)) for _ in range(rng.randint(0, 4))]
        cases.append((running, waiting, rng.randint(1, 40), len(running) + rng.randint(0, 3)))

    ONE_STEP.judge("share_budget", share_budget, cases, clean=as_plan)


# ---------------------------------------------------------------------- 4.2 preemption

EACH_RUNNING = "while index < len(running) and budget > 0:"
VICTIM, QUEUED = "victim = running.pop()", "waiting.appendleft(victim)"
ADMITTED, NO_ROOM = (
    "plan.append((request, n))\n        budget -= n",
    "            break\n        running.append",
)
PREEMPTION = Exercise(
    "p4e2_preemption",
    step={
        "serves-a-victim": {  # walks along a copy of `running`, and comes to those that were sent away by then
            f"{EACH_RUNNING}\n        request = running[index]": """for request in list(running):
        if budget == 0:
            break"""
        },
        "none-preempted": {VICTIM: "index += 1\n                break"},
        "wrong-victim": (
            {
                VICTIM: """first = running[0] is not request
                victim = running.pop(0 if first else -1)
                plan = [part for part in plan if part[0] is not victim]
                index -= first"""
            },
            {VICTIM: "victim = running.pop(index)"},  # itself
        ),
        "blocks-not-freed": (
            {"pool.free(victim)": "victim is request and pool.free(victim)"},
            {"pool.free(victim)": "pass"},
        ),
        "keeps-computed": {"victim.num_computed_tokens = 0": "pass"},
        "victim-at-the-tail": {QUEUED: "waiting.append(victim)"},
        "queue-out-of-order": {
            QUEUED: "waiting.insert(preempted, victim)",
            "preempted = True": "preempted += 1",
        },
        "victim-lost": {QUEUED: "pass"},
        "computes-without-blocks": {"if got_blocks:": "if True:"},
        "admits-after-preemption": {"not preempted and ": ""},
        "admits-what-does-not-fit": (
            {", must_fit=request.num_tokens": ""},
            {"must_fit=request.num_tokens": "must_fit=request.num_tokens - request.num_computed_tokens"},
        ),
        "budget-per-request": (
            {ADMITTED: "plan.append((request, n))"},
            {"budget -= n": "pass"},
            {f"min({LAG}, budget)": LAG},
        ),
        "limit-ignored": {" and len(running) < max_num_seqs": ""},
        "admitted-and-idle": {ADMITTED: "budget -= n"},
        "jumps-the-queue": {
            "index = [], False, 0": "index, skipped = [], False, 0, 0",
            NO_ROOM: f"""            skipped += 1
            if skipped < len(waiting):
                waiting.rotate(-1)
                continue
{NO_ROOM}""",
        },
        "preempted-for-nothing": {
            NO_ROOM: f"""            if running:
                victim = running.pop()
                pool.free(victim)
                victim.num_computed_tokens = 0
                waiting.append(victim)
                plan = [part for part in plan if part[0] is not victim]
{NO_ROOM}"""
        },
        "forgets-what-is-cached": (
            {f"waiting[0]\n        n = min({LAG}": "waiting[0]\n        n = min(request.num_tokens"},
            {LAG: "request.num_tokens"},
        ),
        "parts-of-nothing": (
            {EACH_RUNNING: "while index < len(running):"},
            When(lambda got, *_: any(n <= 0 for _, n in got["computed"])),
        ),
        "blocks-too-few": (
            {"request.num_computed_tokens + n": "n"},
            {"request.num_computed_tokens + n": "request.num_computed_tokens"},
        ),
        "blocks-for-later": (
            {"request.num_computed_tokens + n, must_fit": "request.num_tokens, must_fit"},
            {"request.num_computed_tokens + n": "request.num_tokens"},
        ),
        "moves-computed-on": {
            "    return plan": """    for request, n in plan:
        request.num_computed_tokens += n
    return plan"""
        },
    },
)

Counts = list[tuple[int, int]]


class _WatchedPool(Pool):
    """Notes which requests ask to be admitted after a preemption: such a step admits none."""

    def __init__(self) -> None:
        super().__init__(10**6)
        self.preempted, self.asked_too_late = False, []

    def allocate(self, request: SmallRequest, num_tokens: int, must_fit: int = 0) -> bool:
        if self.preempted and must_fit:
            self.asked_too_late.append(request.name)
        return super().allocate(request, num_tokens, must_fit)

    def free(self, request: SmallRequest) -> None:
        self.preempted = True
        super().free(request)


def _scene(tokens: Counts, queue: Counts, free: int) -> tuple[list, deque, _WatchedPool]:
    """Which requests run and wait, with which blocks. tokens, queue: (all, computed) of each that runs, and waits."""
    names = iter(NAMES)
    running = [SmallRequest(next(names), *counts) for counts in tokens]
    waiting = deque(SmallRequest(next(names), *counts) for counts in queue)
    pool = _WatchedPool()
    for request in [*running, *waiting]:
        pool.allocate(request, request.num_computed_tokens)
    pool.num_blocks = sum(pool.held.values()) + free
    return running, waiting, pool


def after(
    step: Callable, tokens: list, queue: list, free: int, budget: int, max_num_seqs: int
) -> dict[str, Any]:
    """The scene after a step."""
    running, waiting, pool = _scene(tokens, queue, free)
    everyone = [*running, *waiting]
    plan = step(running, waiting, budget, max_num_seqs, pool)
    return {
        "computed": plan if plan is None else as_plan(plan),
        "running": [request.name for request in running],
        "waiting": [request.name for request in waiting],
        "num_computed_tokens": {request.name: request.num_computed_tokens for request in everyone},
        "asked to be admitted after a preemption": pool.asked_too_late,
        "blocks": {request.name: n for request, n in pool.held.items() if n},
    }


def _told(tokens: list, queue: list, free: int, budget: int, max_num_seqs: int) -> str:
    running, waiting, _ = _scene(tokens, queue, free)
    return (
        f"running {running}, waiting {list(waiting)} (computed/tokens), {free or 'no'} free "
        f"block{'s' * (free != 1)} of 4 tokens, budget {budget}, max_num_seqs {max_num_seqs}"
    )


@PREEMPTION.grader
def grade_preemption(step: Callable) -> None:
    rng = random.Random(2)
    shapes = [
        ([(9, 8), (8, 7)], [(5, 0)], 0, 16, 4),
        ([(9, 8), (9, 8)], [(3, 0)], 0, 16, 4),
        ([(9, 8), (5, 4), (9, 8)], [(4, 0), (4, 0)], 1, 16, 8),
        ([(30, 8), (5, 4), (5, 4)], [(4, 0)], 1, 20, 8),
        ([(5, 4)], [(20, 0), (3, 0)], 3, 16, 4),
        ([(6, 5)], [(7, 0), (3, 0)], 4, 16, 4),
        ([(6, 5), (7, 6)], [(3, 0)], 4, 16, 2),
        ([(6, 5)], [(12, 8)], 4, 16, 4),
        ([(6, 5)], [(20, 4)], 3, 8, 4),  # begins as a prefix hit, and one block is missing at its end
    ]
    for _ in range(300):
        running = []
        for _ in range(rng.randint(1, 4)):
            computed = rng.choice((4, 8, 8, 12, rng.randint(1, 14)))
            running.append((computed + rng.choice((1, 1, 1, 9)), computed))
        sizes = rng.choices(range(1, 21), k=rng.randint(0, 3))
        waiting = [(n, rng.choice((0, 0, n - 1)) // 4 * 4) for n in sizes]
        max_num_seqs = len(running) + rng.randint(0, 2)
        shapes.append((running, waiting, rng.randint(0, 5), rng.randint(2, 30), max_num_seqs))
    PREEMPTION.judge("step", step, shapes, play=after, show=_told)


# ---------------------------------------------------------------------- 4.3 chunks

THRESHOLD, TOO_MUCH = "if threshold and not alone:", "if n > budget and not chunked:"
CHUNKS = Exercise(
    "p4e3_chunks",
    tokens_now={
        "begins-anew": {" - request.num_computed_tokens": ""},
        "threshold-for-one-alone": {THRESHOLD: "if threshold:"},
        "threshold-of-nothing": {THRESHOLD: "if not alone:"},
        "cuts-anyway": {TOO_MUCH: "if False:"},
        "whole-prompts-only": {TOO_MUCH: "if n > budget:"},
        "over-the-budget": {"return min(n, budget)": "return n"},
        "threshold-only-with-chunks": {THRESHOLD: "if threshold and chunked and not alone:"},
        "waits-before-the-threshold": {
            f"    {THRESHOLD}": f"    {TOO_MUCH}\n        return 0\n    {THRESHOLD}"
        },
    },
    admit={
        "jumps-the-queue": {"break": "continue"},
        "budget-per-request": {"        budget -= n\n": ""},
        "parts-of-nothing": {"break": "pass"},
        "one-at-a-time": {"in waiting:": "in waiting[:1]:"},
    },
)


@CHUNKS.grader
def grade_chunks(tokens_now: Callable, admit: Callable) -> None:
    rng = random.Random(3)
    alice, dan = SmallRequest("alice", 37), SmallRequest("dan", 3)
    cases = [
        (alice, 16, 8, False, True),
        (alice, 16, 0, False, True),
        (alice, 16, 8, True, True),
        (SmallRequest("alice", 37, 27), 16, 8, False, True),
        (alice, 16, 0, False, False),
        (SmallRequest("alice", 15), 16, 0, False, False),
        (SmallRequest("alice", 25), 16, 8, False, False),
        (SmallRequest("alice", 16), 16, 0, False, False),
        (alice, 16, 1, False, True),
    ]
    for _ in range(150):
        tokens = rng.randint(1, 100)
        request = SmallRequest("alice", tokens, rng.choice((0, 0, rng.randrange(tokens))))
        budget, threshold = rng.randint(1, 80), rng.choice((0, 0, 8, 30))
        cases.append((request, budget, threshold, rng.random() < 0.3, rng.random() < 0.6))

    CHUNKS.judge("tokens_now", tokens_now, cases)
    queues = [
        ([alice, dan], 16, 8, False, True),
        ([alice], 16, 8, False, True),  # others run
        ([alice, dan], 16, 0, False, True),
        ([alice, dan], 16, 0, False, False),
        ([SmallRequest("alice", 13), dan], 16, 0, False, False),
        ([SmallRequest("alice", 37, 27), dan], 16, 0, False, True),
        ([alice, dan], 16, 1, False, True),
    ]
    for _ in range(100):
        waiting = [SmallRequest(name, rng.randint(1, 60)) for name in NAMES[: rng.randint(0, 5)]]
        alone = len(waiting) == 1 and rng.random() < 0.5
        queues.append((waiting, rng.randint(1, 90), rng.choice((0, 10, 25)), alone, rng.random() < 0.6))
    CHUNKS.judge("admit", admit, queues, clean=as_plan)
