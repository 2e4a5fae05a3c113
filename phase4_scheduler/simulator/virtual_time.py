"""A server in virtual time: the real scheduler and the real block manager, with a clock instead of a model.

Ten thousand requests take minutes or hours to serve, and seconds to simulate. What happens in each step is
not imitated, it is decided by the same code that drives the engine. Only two things are made up: the tokens
of the answers (nothing reads them here) and how long each step takes (see `cost_model.py`).

The clock stands still between steps. If there is no request, it jumps to the next arrival.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import Request, Scheduler, SchedulerConfig, SchedulerOutput
from phase4_scheduler.simulator.cost_model import CostModel
from phase4_scheduler.simulator.latency import RequestRecord
from phase4_scheduler.simulator.quiet_steps import QuietSteps, all_decode
from phase4_scheduler.simulator.step_size import StepSize
from phase4_scheduler.simulator.traffic import PromptMaker, TrafficRequest

ANSWER = 0  # the token that every step "samples"


@cache
def _answer_of(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True)


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


class ClockedEngine:
    """An engine with a clock in place of a model.

    Args:
        cost: says how many seconds a step takes.
        async_scheduling: decide each step while the one before is computed, as vLLM does, so that the card never
            waits for a decision. The price: a request that comes waits a step longer, and one that ended keeps
            its place and its blocks for one step more.

    Attributes:
        now: from when on the next step may be decided: the end of the last one; its begin with `async_scheduling`.
        run: what has happened so far.
        unfinished: records of the requests that it has, by id.
    """

    def __init__(self, scheduler: Scheduler, cost: CostModel, async_scheduling: bool = False) -> None:
        self.scheduler, self.cost, self.async_scheduling = scheduler, cost, async_scheduling
        self.run = Run()
        self.unfinished: dict[str, RequestRecord] = {}
        self.now = 0.0
        self._end = 0.0  # of the last step that was decided
        self._quiet: QuietSteps | None = None
        self._ending: list[Request] = []  # that get their last token in the step that is computed now

    def add(
        self, arriving: TrafficRequest, number: int, prompt: list[int], block_hashes: Sequence[bytes] = ()
    ) -> None:
        """Take a request in, when all steps that begin before its arrival are made (`advance`).

        Args:
            block_hashes: names of the prompt's first blocks, where they are known already.

        Raises:
            ValueError: it could never fit.
        """
        isl, osl = arriving.prompt_tokens, arriving.output_tokens
        if isl + osl > self.scheduler.max_model_len:
            longest = self.scheduler.max_model_len
            raise ValueError(f"{isl:,} + {osl:,} tokens do not fit a context of {longest:,}")
        params = _answer_of(osl)
        request = Request(
            str(number), prompt, params, arrival_time=arriving.arrival, priority=arriving.priority
        )
        request.block_table.block_hashes = list(block_hashes)
        self.scheduler.add(request)
        self.now = max(self.now, arriving.arrival)
        record = self.unfinished[request.request_id] = RequestRecord.of(arriving)
        record.queued = self.now
        # It came during the last step, and has waited for its end.
        self.run.in_system_seconds += max(self.now, self._end) - arriving.arrival

    def advance(self, until: float) -> None:
        """Make all steps that are decided before this time."""
        while self.now < until and self.scheduler.has_requests:
            if self.async_scheduling or not self._step_quietly():
                self._step()

    def _step_quietly(self) -> bool:
        """Make a step in which all that run decode. False if the next one is none."""
        if self._quiet is None:
            if not all_decode(self.scheduler):
                return False
            self._quiet = QuietSteps(self.scheduler, self.unfinished, ANSWER)
        decided = self._quiet.decide()
        if decided is None:
            self._quiet.end()
            self._quiet = None
            return False
        output, size = decided
        self.now = self._end = self.now + self._note_step(self.now, size)
        for request in self._quiet.hand_out(output, self.now):
            self._finish(request)
        return True

    def _step(self) -> None:
        begin = max(self.now, self._end)
        decided = self.decide()
        if decided is None:
            self.now = begin
        else:
            output, size = decided
            self.hand_out(output, begin, begin + self._note_step(begin, size))

    def decide(self) -> tuple[SchedulerOutput, StepSize] | None:
        """The next step, and how much it has to do. None: nothing, some requests only had to leave."""
        output = self.scheduler.schedule()
        ended, self._ending = self._ending, []
        for request in ended:
            request.append(ANSWER)
            self.scheduler.finish(request, "length")
            self._finish(request)
        if not output.scheduled:
            if not (output.preempted or ended):
                raise RuntimeError("the scheduler has requests and schedules none: this is a bug")
            return None
        return output, StepSize.of((s.num_computed, s.num_tokens) for s in output.scheduled)

    def hand_out(self, output: SchedulerOutput, begin: float, end: float) -> None:
        """Hand the tokens of a step out that lasts from `begin` to `end`."""
        self._end = end
        sampling = [s for s in output.scheduled if s.samples]
        for s in sampling:
            self.unfinished[s.request.request_id].token_times.append(end)
        if self.async_scheduling:
            # Decide the next step as soon as this one begins. Nobody knows yet which tokens it will sample, only
            # how many: so its requests go on, but for those whose last token this is.
            self.now = begin
            self._ending = [s.request for s in sampling if _is_last(s.request)]
            sampling = [s for s in sampling if not _is_last(s.request)]
        else:
            self.now = end
        for request in self.scheduler.update(replace(output, scheduled=sampling), [ANSWER] * len(sampling)):
            self._finish(request)

    def _note_step(self, begin: float, size: StepSize) -> float:
        """Write down a step. Returns the seconds that it takes."""
        seconds, run = self.cost.seconds(size), self.run
        running, waiting = len(self.scheduler.running), len(self.scheduler.waiting)
        run.times.append(begin)
        run.durations.append(seconds)
        run.running.append(running)
        run.waiting.append(waiting)
        run.usage.append(self.scheduler.block_manager.usage)
        run.in_system_seconds += seconds * (running + waiting)
        return seconds

    def _finish(self, request: Request) -> None:
        record = self.unfinished.pop(request.request_id)
        record.num_cached_tokens = request.num_cached_tokens
        record.num_preemptions = request.num_preemptions
        self.run.records.append(record)


def simulate(
    requests: Iterable[TrafficRequest],
    config: SchedulerConfig,
    num_blocks: int,
    cost: CostModel,
    *,
    block_size: int = 16,
    prompts: PromptMaker | None = None,
    async_scheduling: bool = False,
    enable_prefix_caching: bool = True,
) -> Run:
    """Serve all requests, and say when each token came out.

    Args:
        requests: in the order of their arrivals.
        prompts: makes the prompts up.
        cost, async_scheduling: see `ClockedEngine`.

    A request that could never fit is refused, as a server would do, and counted. The result depends on the
    arguments alone: the same seed, the same run.
    """
    prompts = prompts or PromptMaker()
    scheduler = Scheduler(config, BlockManager(num_blocks, block_size, enable_prefix_caching))
    engine = ClockedEngine(scheduler, cost, async_scheduling)
    run = engine.run
    for number, arriving in enumerate(requests):
        engine.advance(arriving.arrival)
        try:
            # Its prompt is made up only now: those of a long trace would not fit in memory.
            engine.add(arriving, number, prompts.prompt(arriving, number))
        except ValueError as error:
            run.refused, run.refusal = run.refused + 1, run.refusal or str(error)
    engine.advance(math.inf)
    scheduler.block_manager.check_integrity()
    run.preemptions = scheduler.num_preemptions
    return run


def _is_last(request: Request) -> bool:
    """Whether the token that it gets next is its last."""
    return len(request.output_token_ids) + 1 == request.max_tokens
