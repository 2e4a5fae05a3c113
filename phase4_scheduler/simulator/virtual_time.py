"""A server in virtual time: the real scheduler and the real block manager, with a clock instead of a model.

Ten thousand requests take minutes or hours to serve, and seconds to simulate. What happens in each step is
not imitated, it is decided by the same code that drives the engine. Only two things are made up: the tokens
of the answers (nothing reads them here) and how long each step takes (see `cost_model.py`).

The clock stands still between steps. If there is no request, it jumps to the next arrival.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import Request, Scheduler, SchedulerConfig
from phase4_scheduler.simulator.cost_model import CostModel
from phase4_scheduler.simulator.latency import RequestRecord
from phase4_scheduler.simulator.quiet_steps import decode_quietly, quiet_steps
from phase4_scheduler.simulator.step_size import StepSize
from phase4_scheduler.simulator.traffic import PromptMaker, TrafficRequest

ANSWER = 0  # the token that every step "samples"


@dataclass
class Run:
    """What happened.

    Attributes:
        records: finished requests, in the order in which they finished.
        refused: requests that could never fit, and why the first of them was refused.
        times, durations: of each step, its begin and its length in seconds.
        running, waiting: requests in each step.
        usage: share of the KV blocks in use in each step.
        in_system_seconds: seconds that requests spent in the system, all together, counted by the scheduler.
        preemptions: of the whole run.
    """

    records: list[RequestRecord] = field(default_factory=list)
    refused: int = 0
    refusal: str = ""
    times: list[float] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    usage: list[float] = field(default_factory=list)
    in_system_seconds: float = 0.0
    preemptions: int = 0

    def mean_usage(self, since: float = -np.inf, until: float = np.inf) -> float:
        """KV usage, averaged over the time in which there was something to do."""
        times = np.asarray(self.times)
        window = (times >= since) & (times <= until)
        weights = np.asarray(self.durations)[window]
        return float(np.average(np.asarray(self.usage)[window], weights=weights)) if weights.sum() else 0.0

    @property
    def peak_usage(self) -> float:
        return max(self.usage, default=0.0)


def simulate(
    requests: Iterable[TrafficRequest],
    config: SchedulerConfig,
    num_blocks: int,
    cost: CostModel,
    *,
    block_size: int = 16,
    prompts: PromptMaker | None = None,
    async_scheduling: bool = False,
) -> Run:
    """Serve all requests, and say when each token came out.

    Args:
        requests: in the order of their arrivals.
        cost: says how many seconds a step takes.
        prompts: makes the prompts up.
        async_scheduling: decide each step while the one before is computed, as vLLM does, so that the card never
            waits for a decision. The price: a request that comes waits a step longer, and one that ended keeps
            its place and its blocks for one step more.

    A request that could never fit is refused, as a server would do, and counted. The result depends on the
    arguments alone: the same seed, the same run.
    """
    prompts = prompts or PromptMaker()
    scheduler = Scheduler(config, BlockManager(num_blocks, block_size))
    run, now, end = Run(), 0.0, 0.0  # end: of the last step that was decided
    unfinished: dict[str, RequestRecord] = {}
    size, ends = StepSize(0, 0, 0, 0.0), []  # of the steps that only decode
    ending: list[Request] = []  # that get their last token in the step that is computed now
    coming = enumerate(requests)
    number, arriving = next(coming, (0, None))

    def note_step(begin: float, size: StepSize) -> float:
        seconds = cost.seconds(size)
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        run.times.append(begin)
        run.durations.append(seconds)
        run.running.append(running)
        run.waiting.append(waiting)
        run.usage.append(scheduler.block_manager.usage)
        run.in_system_seconds += seconds * (running + waiting)
        return seconds

    def tick() -> bool:
        """A step in which all decode. False if somebody has come by its end."""
        nonlocal now, size
        now += note_step(now, size)
        ends.append(now)
        n = size.num_requests
        size = StepSize(n, n, size.context + n, size.pairs + n)
        return arriving is None or arriving.arrival > now

    def hand_back(request: Request) -> None:
        record = unfinished.pop(request.request_id)
        record.num_cached_tokens = request.num_cached_tokens
        record.num_preemptions = request.num_preemptions
        run.records.append(record)

    while arriving is not None or scheduler.has_requests:
        # 1. Add the requests that have arrived by now.
        if not scheduler.has_requests:
            now = max(now, arriving.arrival)
        begin = max(now, end)
        while arriving is not None and arriving.arrival <= now:
            try:
                # Its prompt is made up only now: those of a long trace would not fit in memory.
                scheduler.add(_request(arriving, number, prompts, scheduler.max_model_len))
            except ValueError as error:
                run.refused, run.refusal = run.refused + 1, run.refusal or str(error)
            else:
                record = unfinished[str(number)] = RequestRecord.of(arriving)
                record.queued = now
                run.in_system_seconds += begin - arriving.arrival  # it came during the last step
            number, arriving = next(coming, (0, None))
        if not scheduler.has_requests:
            continue  # all that came were refused

        # Where nothing but decoding lies ahead, let the clock run through it.
        steps = 0 if async_scheduling else quiet_steps(scheduler)
        if steps > 1:
            ends = []
            size = StepSize.of((r.num_computed_tokens, 1) for r in scheduler.running)
            decode_quietly(scheduler, steps, ANSWER, tick)
            for request in scheduler.running:
                unfinished[request.request_id].token_times += ends
            end = now
            continue

        # 2. Decide the step, and add up what it has to do.
        output = scheduler.schedule()
        ended, ending = ending, []
        for request in ended:
            request.append(ANSWER)
            scheduler.finish(request, "length")
            hand_back(request)
        if not output.scheduled:
            if output.preempted or ended:
                now = begin
                continue
            raise RuntimeError("the scheduler has requests and schedules none: this is a bug")
        size = StepSize.of((s.num_computed, s.num_tokens) for s in output.scheduled)

        # 3. Let the clock run for as long as the step takes.
        end = begin + note_step(begin, size)

        # 4. Hand the tokens out.
        sampling = [s for s in output.scheduled if s.samples]
        for s in sampling:
            unfinished[s.request.request_id].token_times.append(end)
        if async_scheduling:
            # Decide the next step as soon as this one begins. Nobody knows yet which tokens it will sample, only
            # how many: so its requests go on, but for those whose last token this is.
            now = begin
            ending = [s.request for s in sampling if _is_last(s.request)]
            sampling = [s for s in sampling if not _is_last(s.request)]
        else:
            now = end
        for request in scheduler.update(replace(output, scheduled=sampling), [ANSWER] * len(sampling)):
            hand_back(request)

    scheduler.block_manager.check_integrity()
    run.preemptions = scheduler.num_preemptions
    return run


def _is_last(request: Request) -> bool:
    """Whether the token that it gets next is its last."""
    return len(request.output_token_ids) + 1 == request.max_tokens


def _request(arriving: TrafficRequest, number: int, prompts: PromptMaker, max_model_len: int) -> Request:
    isl, osl = arriving.prompt_tokens, arriving.output_tokens
    if isl + osl > max_model_len:
        raise ValueError(f"{isl:,} + {osl:,} tokens do not fit a context of {max_model_len:,}")
    return Request(
        str(number),
        prompts.prompt(arriving, number),
        SamplingParams(max_tokens=osl, ignore_eos=True),
        arrival_time=arriving.arrival,
        priority=arriving.priority,
    )
