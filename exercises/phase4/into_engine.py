"""The way into the engine: steps of `LLMEngine` decided by the learner's functions, beside the course's scheduler."""

from collections import deque
from collections.abc import Callable, Sequence

from exercises.grading import NotYet
from exercises.judging import engine_runs
from exercises.judging.engine_runs import refuse, tales
from exercises.judging.side_by_side import passed
from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import (
    EngineConfig,
    LLMEngine,
    Request,
    RequestStatus,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
)
from phase4_scheduler.simulator import (
    Job,
    RequestRecord,
    percentiles,
    serve_continuously,
    serve_statically,
    summarise,
)

PROMPTS = (
    "Once upon a time there was a king who had three sons, and",
    "The sea was calm, but",
    "In the middle of the forest stood a little house, and in it lived an old woman. One day",
    "Nobody knew where the",
)

# ---------------------------------------------------------------------- the learner's step in the engine


class EnginePool:
    """What exercise 4.2 calls a pool, on the engine's own block manager."""

    def __init__(self, manager: BlockManager) -> None:
        self._manager = manager

    def allocate(self, request: Request, num_tokens: int, must_fit: int = 0) -> bool:
        return self._manager.allocate(request.block_table, request.token_ids, num_tokens, must_fit=must_fit)

    def free(self, request: Request) -> None:
        self._manager.free(request.block_table)


class LearnersScheduler(Scheduler):
    """The course's scheduler, with a step of yours.

    Args:
        step: step(running, waiting, budget, max_num_seqs, pool) -> [(request, tokens), ...]; it moves
            requests between `running` (a list) and `waiting` (a deque) by itself.
    """

    def __init__(self, config: SchedulerConfig, block_manager: BlockManager, step: Callable) -> None:
        super().__init__(config, block_manager)
        self._step = step

    def schedule(self) -> SchedulerOutput:
        config = self.config
        output = SchedulerOutput(config.max_num_batched_tokens)
        before, waiting = list(self.running), deque(self.waiting)
        plan = self._step(
            self.running,
            waiting,
            config.max_num_batched_tokens,
            config.max_num_seqs,
            EnginePool(self.block_manager),
        )
        for request in list(self.waiting):
            self.waiting.remove(request)
        for request in waiting:
            self.waiting.push(request)
        for request in before:
            if request not in self.running:
                request.status = RequestStatus.PREEMPTED
                request.num_preemptions += 1
                output.preempted.append(request)
        for request, n in plan:
            request.status = RequestStatus.RUNNING
            self.add_to_step(output, request, n, request.num_computed_tokens)
            request.num_computed_tokens += n
        return output


def step_of_plan(plan: Callable) -> Callable:
    """A plan without memory, plan(running, waiting, budget, max_num_seqs), as a step: it gets blocks and seats."""

    def step(running: list, waiting: deque, budget: int, max_num_seqs: int, pool: EnginePool) -> list:
        chosen = list(plan(list(running), list(waiting), budget, max_num_seqs))
        for request, n in chosen:
            if not pool.allocate(request, request.num_computed_tokens + n):
                raise RuntimeError("this engine was given too few blocks for a plan without memory")
            if request in waiting:
                waiting.remove(request)
                running.append(request)
        return chosen

    return step


def side_by_side(
    step: Callable,
    config: SchedulerConfig,
    num_blocks: int,
    block_size: int = 4,
    prompts: Sequence[str] = PROMPTS,
) -> None:
    """The engine with the learner's step and with the course's scheduler, both without prefix caching.

    Prints tokens, speed and the first answer; refuses where steps or tokens differ.
    """

    def manager() -> BlockManager:
        return BlockManager(num_blocks, block_size, enable_prefix_caching=False)

    mine, course = engine_runs.side_by_side(
        lambda: {"scheduler": LearnersScheduler(config, manager(), step)},
        lambda: {"scheduler": Scheduler(config, manager())},
        (prompts,),
        SamplingParams(temperature=0.7, seed=11, max_tokens=20, ignore_eos=True),
    )
    for i, (a, b) in enumerate(zip(mine.steps, course.steps)):
        if a != b:
            says = "In the engine your part decides another step than the course's scheduler does."
            refuse(NotYet("other-steps", says, f"step {i + 1} of the engine, {{request: tokens}}", a, b))
    pairs = [
        {
            "steps": len(run.steps),
            "preemptions": run.engine.core.stats.num_preemptions,
            "most tokens in one step": max(sum(step.values()) for step in run.steps),
        }
        for run in (mine, course)
    ]
    engine_runs.compare(mine, course, *((what, a, pairs[1][what]) for what, a in pairs[0].items()))


# ---------------------------------------------------------------------- one by one


def budget_in_the_engine(share_budget: Callable) -> None:
    """Exercise 4.1: three seats for four prompts, 16 tokens a step, memory for all."""
    passed("p4e1_one_step", share_budget)
    config = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=3)
    side_by_side(step_of_plan(share_budget), config, 200)


def preemption_in_the_engine(step: Callable) -> None:
    """Exercise 4.2: a cache that is too small for four answers at once."""
    passed("p4e2_preemption", step)
    config = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4)
    side_by_side(step, config, 22)


def chunks_in_the_engine(tokens_now: Callable, admit: Callable) -> None:
    """Exercise 4.3: two short prompts and a long one, with and without a threshold."""
    passed("p4e3_chunks", tokens_now, admit)

    def step_with(threshold: int) -> Callable:
        def plan(running: list, waiting: list, budget: int, max_num_seqs: int) -> list:
            alone = len(running) + len(waiting) <= 1
            chosen = []
            for request in running:
                n = tokens_now(request, budget, threshold, alone, True)
                if n:
                    chosen.append((request, n))
                    budget -= n
            seats = max_num_seqs - len(running)
            return chosen + list(admit(waiting[:seats], budget, threshold, alone, True))

        return step_of_plan(plan)

    prompts = [*PROMPTS[:2], " ".join(PROMPTS * 5)]
    for threshold in (0, 16):
        print(f"--- {f'threshold {threshold}' if threshold else 'no threshold'}")
        config = SchedulerConfig(max_num_batched_tokens=512, long_prefill_token_threshold=threshold)
        side_by_side(step_with(threshold), config, 200, 16, prompts)


def predict_the_engine(static: Callable, continuous: Callable) -> None:
    """Exercise 4.4: the learner's step numbers beside the engine's."""
    passed("p4e4_static_continuous", static, continuous)
    lengths, seats = [20, 3, 28, 9, 14, 5, 22], 3
    predicted = {"static": static(list(lengths), seats), "continuous": continuous(list(lengths), seats)}
    model, tokenizer = tales()
    engine = LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=seats, num_blocks=100))
    jobs = [Job(str(i), [100 + i], length) for i, length in enumerate(lengths)]
    served = {
        "static": serve_statically(engine, jobs, seats, pad=False),
        "continuous": serve_continuously(engine, jobs),
    }
    print(f"{seats} seats, answers of {lengths} tokens")
    for way, run in served.items():
        measured = [run.done_step[job.name] for job in jobs]
        if measured != list(predicted[way]):
            says = "The engine hands answers out in other steps than you say."
            refuse(NotYet("other-steps", says, f"{way}, {lengths}, {seats} seats", predicted[way], measured))
        print(f"{way:>10}: {measured}, as you said; {run.steps} steps in all")
    same = served["static"].token_ids == served["continuous"].token_ids
    print("The answers are the same in both ways." if same else "The answers differ!")


def sum_up_the_engine(percentile: Callable, goodput: Callable) -> None:
    """Exercise 4.5: the learner's figures of a real run beside the course's."""
    passed("p4e5_percentiles_goodput", percentile, goodput)
    model, tokenizer = tales()
    engine = LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=2, num_blocks=100))
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (12, 1, 20, 6)]
    metrics = [out.metrics for out in engine.generate(list(PROMPTS), params)]
    requests = [(m.arrival_time, list(m.token_times)) for m in metrics]
    records = [RequestRecord("chat", a, 1, len(times), list(times)) for a, times in requests]
    ttfts = [record.ttft for record in records]
    ttft_slo, tpot_slo = sorted(ttfts)[2] * 1.01, 1.0
    pairs = {
        "p50 of the TTFT": (percentile(list(ttfts), 50), percentiles(ttfts, [50])[0]),
        "p95 of the TTFT": (percentile(list(ttfts), 95), percentiles(ttfts, [95])[0]),
        "goodput": (goodput(requests, ttft_slo, tpot_slo), summarise(records, ttft_slo, tpot_slo).goodput),
    }
    for name, (mine, course) in pairs.items():
        if abs(mine - course) > 1e-9 * abs(course):
            says = f"Your {name} is another one than the course's."
            refuse(NotYet("other-figure", says, "a run of the engine", mine, course))
        print(f"{name:>15}: the same as the course's")
