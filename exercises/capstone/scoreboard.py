"""`lab mine --scoreboard`: goodput of your scheduler and of your policy on a fixed trace, beside rivals.

The same requests, KV cache and SLO for all. No model runs: schedulers decide, and a clock counts what a step would take with Llama-3
8B on an H100, by its data sheet.

The trace: eight conversations, each turn of which repeats all turns before it, and long documents that share nothing and are less
urgent. They come in bursts, faster than they can be served, so that the order matters.
"""

import random
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from labkit.errors import LabError

BLOCK, NUM_BLOCKS = 16, 300
LIMITS = dict(max_num_seqs=32, max_num_batched_tokens=512, max_model_len=4096)
PATIENCE = 10_000  # steps without a new token
SLO = dict(ttft_slo=1.0, tpot_slo=0.05)  # seconds
Step = list[tuple[int, int, int]]  # request, tokens computed before, tokens in this step
Server = tuple[Callable[..., None], Callable[[], Step]]  # how to add a request, and how to take a step


class Line(NamedTuple):
    """A request of a trace. arrival: on the clock of the run."""

    arrival: float
    prompt: list[int]
    answer_tokens: int
    priority: int = 0


def make_trace(count: int = 240) -> list[Line]:
    """Three of four requests are the next turn of a conversation."""
    rng, texts, now, lines = random.Random(11), [[i] * 256 for i in range(8)], 0.0, []
    for number in range(count):
        now += rng.expovariate(60.0) if number % 40 else 1.0
        if rng.random() < 0.25:
            prompt = [1000 + number] * rng.randint(800, 1600)
            lines.append(Line(now, prompt, rng.randint(16, 48), priority=1))
            continue
        which = rng.randrange(len(texts))
        texts[which] = texts[which] + [2000 + number] * rng.randint(24, 80)
        lines.append(Line(now, list(texts[which]), rng.randint(32, 96)))
    return lines


def h100_seconds(step: Step) -> float:
    """By the data sheet: 16.1 GB of weights and 131 kB per token of context at 3.35 TB/s; 16.1 GFLOP per token at 989 TFLOP/s."""
    context, tokens = sum(computed + n for _, computed, n in step), sum(n for *_, n in step)
    return max((16.1e9 + 131e3 * context) / 3.35e12, 16.1e9 * tokens / 989e12)


def serve(
    trace: Sequence[Line], add: Callable, step: Callable, seconds: Callable[[Step], float]
) -> list[Any]:
    """Of each request the clock at each of its tokens, and how much of its prompt was in the cache.

    Raises:
        LabError: the scheduler gave a request another number of tokens than it asked for, or no request any for too long.
    """
    served: list[tuple[list[float], int]] = [([], -1) for _ in trace]
    come, now, idle = 0, 0.0, 0
    while idle < PATIENCE:
        while come < len(trace) and trace[come].arrival <= now:
            add(come, trace[come])
            come += 1
        scheduled = step()
        if not scheduled:
            if come == len(trace):
                break
            now = trace[come].arrival
            continue
        now += seconds(scheduled)
        idle += 1
        for i, computed, n in scheduled:
            times, cached = served[i]
            served[i] = times, computed if cached < 0 else cached
            if computed + n == len(trace[i].prompt) + len(times):
                times.append(now)
                idle = 0
    if idle == PATIENCE:
        raise LabError(f"the scheduler took {PATIENCE:,} steps without a new token: no request gets further")
    for i, (line, (times, _)) in enumerate(zip(trace, served, strict=True)):
        if len(times) != line.answer_tokens:
            counts = f"{len(times)} of {line.answer_tokens} tokens"
            raise LabError(f"request {i} got {counts}: schedule every request until it has all of them")
    return served


# ------------------------------------------------------------------ servers


def new_token(name: str, place: int) -> int:
    """What a request "samples": another token in each request and place."""
    return 1_000_000 + int(name) * 5000 + place


def in_course(policy: Any) -> Server:
    """The course's scheduler. policy: an object with `order` and `victim`, as in policies.py."""
    from phase2_attention_kvcache.model import SamplingParams
    from phase3_paged_attention.paging import BlockManager
    from phase4_scheduler.engine import Request, Scheduler, SchedulerConfig
    from phase4_scheduler.engine.policy import Fcfs

    manager = BlockManager(NUM_BLOCKS, BLOCK)

    class Asking(Request):
        @property
        def num_cached(self) -> int:
            return BLOCK * len(manager.match_prefix(self.block_table, self.token_ids))

    class Ordered(Fcfs):
        """The waiting requests in the order of arrival, preempted ones before all. The policy says which is next."""

        def head(self) -> Request:
            return policy.order(list(self))[0]

        def victim(self, running: Sequence[Request]) -> Request:
            return policy.victim(list(running))

    scheduler = Scheduler(SchedulerConfig(policy=Ordered, **LIMITS), manager)

    def add(number: int, line: Line) -> None:
        params = SamplingParams(max_tokens=line.answer_tokens, ignore_eos=True)
        scheduler.add(Asking(str(number), line.prompt, params, line.arrival, line.priority))

    def step() -> Step:
        output = scheduler.schedule()
        tokens = [new_token(s.request.request_id, s.request.num_tokens) for s in output.scheduled]
        scheduler.update(output, [[t] if s.samples else [] for s, t in zip(output.scheduled, tokens)])
        return [(int(s.request.request_id), s.num_computed, s.num_tokens) for s in output.scheduled]

    return add, step


def in_my_engine() -> Server:
    """The learner's scheduler and blocks."""
    parts, blocks = import_module("my_engine.scheduler"), import_module("my_engine.blocks")
    scheduler = parts.Scheduler(parts.Limits(**LIMITS), blocks.BlockManager(NUM_BLOCKS, BLOCK))

    def add(number: int, line: Line) -> None:
        scheduler.waiting.append(parts.Request(str(number), line.prompt, line.answer_tokens))

    def step() -> Step:
        scheduled = scheduler.schedule()
        grown = [s.request for s in scheduled if s.samples]
        found = [(int(s.request.name), s.first, s.num_tokens) for s in scheduled]
        scheduler.update(grown, [new_token(r.name, len(r.token_ids)) for r in grown])
        return found

    return add, step


# ------------------------------------------------------------------ the table


def scores() -> list[list[Any]]:
    """A row for each server: its name, goodput, share within the SLO, TTFT p50 and p99, hit rate."""
    from exercises.capstone import policies
    from phase4_scheduler.simulator import RequestRecord, summarise

    servers = {name: in_course(kind()) for name, kind in policies.RIVALS.items()}
    servers["your policy"] = in_course(import_module("my_engine.policy").Policy())
    servers["your scheduler and blocks"] = in_my_engine()
    trace, rows = make_trace(), []
    for name, server in servers.items():
        served = serve(trace, *server, h100_seconds)
        records = [
            RequestRecord("trace", line.arrival, len(line.prompt), line.answer_tokens, times, cached)
            for line, (times, cached) in zip(trace, served, strict=True)
        ]
        told = summarise(records, **SLO)
        hits = sum(r.num_cached_tokens for r in records) / told.prompt_tokens
        rows.append([name, told.goodput, told.good_share, told.ttft.p50, told.ttft.p99, hits])
    return rows


def show_scores(console: Any) -> int:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("served by", "goodput, requests/s", "within the SLO", "TTFT p50, s", "p99, s", "hit rate"):
        table.add_column(column, justify="left" if column == "served by" else "right")
    with console.status("the same traffic, six times ..."):
        rows = scores()
    for name, goodput, share, p50, p99, hits in rows:
        table.add_row(name, f"{goodput:.2f}", f"{share:.0%}", f"{p50:.2f}", f"{p99:.2f}", f"{hits:.0%}")
    console.print(table)
    console.print(
        f"{NUM_BLOCKS} blocks of {BLOCK} tokens; SLO: first token in {SLO['ttft_slo']:g} s, then {SLO['tpot_slo']:g} s per token. "
        "Change my_engine/policy.py or my_engine/scheduler.py, and look again."
    )
    return 0
