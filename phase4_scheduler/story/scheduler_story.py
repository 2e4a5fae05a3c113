"""The chapters of scheduler_lab.py: one budget, one memory, and every request wants some of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from labkit.lab import Lab
from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import Request, Scheduler, SchedulerConfig


@dataclass
class Played:
    """What was decided.

    Attributes:
        steps: for each step, request id -> tokens. blocks: the same, for the blocks that a running request holds.
        preempted: (step, request id)
        first_step: request id -> step with the first token of its answer.
    """

    steps: list[dict[str, int]] = field(default_factory=list)
    blocks: list[dict[str, int]] = field(default_factory=list)
    preempted: list[tuple[int, str]] = field(default_factory=list)
    first_step: dict[str, int] = field(default_factory=dict)


def ask(request_id: str, prompt: int, answer: int, priority: int = 0) -> Request:
    """A request of so many tokens. Each has tokens of its own, so that none shares a prompt by accident."""
    token = int.from_bytes(request_id.encode())
    return Request(request_id, [token] * prompt, SamplingParams(max_tokens=answer), priority=priority)


def play(
    arrivals: dict[int, list[Request]], num_blocks: int = 200, caching: bool = True, **config: object
) -> Played:
    """Let the scheduler decide until all are done; `arrivals`: the requests that come before each step."""
    scheduler = Scheduler(SchedulerConfig(**config), BlockManager(num_blocks, 16, caching))
    played, number = Played(), 0
    while number < max(arrivals) or scheduler.has_requests:
        number += 1
        for request in arrivals.get(number, []):
            request.arrival_time = number
            scheduler.add(request)
        output = scheduler.schedule()
        played.steps.append({s.request.request_id: s.num_tokens for s in output.scheduled})
        played.blocks.append({r.request_id: len(r.block_table.block_ids) for r in scheduler.running})
        played.preempted += [(number, r.request_id) for r in output.preempted]
        for s in output.scheduled:
            if s.samples:
                played.first_step.setdefault(s.request.request_id, number)
        # The token that a model would answer. Any will do: a scheduler never reads it.
        scheduler.update(output, [[7] if s.samples else [] for s in output.scheduled])
    return played


def draw(played: Played, requests: list[str], steps: Sequence[int], budget: int | None = None) -> str:
    """One row for each of these steps: the tokens that each request computes, the blocks that it holds, a bar of the budget."""
    width = max(6, *(len(r) + 1 for r in requests))
    names = "".join(f"{r:>{width}}" for r in requests)
    lines = [f"step  {names}  blocks{names}" + ("   budget" if budget else "")]
    for step in steps:
        tokens, blocks = played.steps[step - 1], played.blocks[step - 1]
        cells = ["".join(f"{counts.get(r, '·'):>{width}}" for r in requests) for counts in (tokens, blocks)]
        row = f"{step:>4}  {(' ' * 8).join(cells)}"
        if budget:
            bar = "".join(r[0] * tokens.get(r, 0) for r in requests)
            row += f"   |{bar:<{budget}}|"
        preempted = [r for at, r in played.preempted if at == step]
        lines.append(row + (f"   {', '.join(preempted)} preempted" if preempted else ""))
    return "\n".join(lines)


def one_budget_for_all(lab: Lab) -> None:
    lab.title("One budget for all")
    budget = 16
    rest = budget - 1
    lab.say(f"""A step may compute {budget} tokens. bob is in the middle of its answer. In step 2 alice arrives
        with a prompt of 37 tokens. Running requests go first, and bob needs only one token. alice gets the rest.""")
    arrivals = {1: [ask("bob", 4, 12)], 2: [ask("alice", 37, 4)]}
    played = play(arrivals, max_num_batched_tokens=budget)
    lab.predict(
        claim="shared-budget",
        question=f"alice's 37 tokens at a budget of {budget}, beside an answer. Tokens in its first three steps",
        predicted=[min(rest, max(1, 37 - i * rest)) for i in range(3)],
        measured=[step["alice"] for step in played.steps if "alice" in step][:3],
        note="One token of the budget goes to bob, every time. The step in which alice's prompt is complete, "
        f"number {played.first_step['alice']}, samples its first new token as well.",
    )
    lab.show(draw(played, ["bob", "alice"], range(1, 9), budget))
    lab.say("""Nothing here says "prefill" or "decode". Each request has tokens that are not computed yet: alice 37,
        bob 1. One rule serves both.""")
    lab.record(shared_budget=played.steps)


def memory_runs_short(lab: Lab) -> None:
    lab.title("Memory runs short: a request is preempted")
    lab.say("""Now the cache has 6 blocks, 96 tokens (the worked problem of chapter 3). bob is admitted in step 1 with a
        prompt of 30 tokens, alice in step 2 with its 37. But answers grow, and their lengths are not known beforehand.""")
    cached, plain = (
        play({1: [ask("bob", 30, 30)], 2: [ask("alice", 37, 20)]}, num_blocks=7, caching=caching)
        for caching in (True, False)
    )
    (step, preempted), *_ = cached.preempted
    lab.predict(
        claim="preempted",
        question="each request gets one token per step. In which step is no block left, and which request is preempted",
        predicted=[49 - 37 + 2, "alice"],
        measured=[step, preempted],
        note="In step 4 bob takes the sixth block for its token 33. Step 3 computes token 38 of alice, step 14 token 49, "
        "which needs a fourth block. The request admitted last is preempted: earlier requests are nearer to their end.",
    )
    again = {name: _on_return(p, "alice") for name, p in (("with", cached), ("without", plain))}
    lab.predict(
        claim="recomputed",
        question="alice has 49 tokens when it comes back. How many must be computed: without a prefix cache, with it",
        predicted=[49, 49 - 2 * 16],
        measured=[again["without"][1], again["with"][1]],
        note="Its blocks are in the free list and keep their hashes. bob took one meanwhile: the last, since a request's last "
        "block is freed first. The two before it are hit, as if they were a shared system prompt.",
    )
    lab.show(draw(cached, ["bob", "alice"], [2, 3, 4, 5, 13, step, 15, 20, 30, again["with"][0], 32]))
    lab.say(f"""The user of alice sees a pause of {again["with"][0] - step} steps in the middle of its answer, and no token
        is different. The alternative is to move the blocks to main memory and back (preemption="swap").""")
    lab.record(preempted=cached.preempted, returned=again)


def _on_return(played: Played, request_id: str) -> tuple[int, int]:
    """(step, tokens to compute) of the first step after a request was preempted."""
    away = next(step for step, r in played.preempted if r == request_id)
    return next((i, s[request_id]) for i, s in enumerate(played.steps, 1) if i > away and request_id in s)


def urgent_first(lab: Lab) -> None:
    lab.title("Which request goes first")
    lab.say("""Two requests may run at a time (max_num_seqs). Four arrive at once, with answers of 10 tokens. In step 3 zoe
        arrives: it is urgent (priority -1, all others 0; the smallest number goes first).""")
    first, rows = {}, []
    for policy in ("fcfs", "priority"):
        names = ["alice", "bob", "carol", "dan"]
        arrivals = {1: [ask(n, 4, 10) for n in names], 3: [ask("zoe", 4, 5, priority=-1)]}
        played = play(arrivals, max_num_seqs=2, policy=policy)
        first[policy] = played.first_step["zoe"]
        rows.append([policy, *(played.first_step[n] for n in [*names, "zoe"])])
    lab.predict(
        claim="urgent",
        question="step with zoe's first token: first come first served, and by priority",
        predicted=[21, 11],
        measured=[first["fcfs"], first["priority"]],
        note="Under fcfs four others run before zoe, two at a time: two rounds of 10 steps. Priority lets zoe pass "
        "waiting requests, not running ones: it waits until alice is done. Only missing memory preempts a request.",
    )
    lab.table("Step of the first token", ["policy", *names, "zoe"], rows)
    lab.say("""What it costs: priority moves the waiting from urgent requests to the others
        and does not reduce it. A larger batch, more memory or more machines do.""")
