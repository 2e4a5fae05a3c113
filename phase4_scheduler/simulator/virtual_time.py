"""A server in virtual time: the real scheduler and the real block manager, with a clock instead of a model.

Ten thousand requests take minutes or hours to serve, and seconds to simulate. The code that drives the engine decides
each step. Only two things are made up: the tokens of the answers (nothing reads them here) and the seconds that a step
takes (see `cost_model.py`).

The clock stands still between steps. If there is no request, it jumps to the next arrival.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import Request, Scheduler, SchedulerConfig, SchedulerOutput
from phase4_scheduler.simulator.cost_model import CostModel, StepSize
from phase4_scheduler.simulator.latency import RequestRecord, Run
from phase4_scheduler.simulator.traffic import TRACE_BLOCK, TrafficRequest

ANSWER = 0  # the token that every step "samples"


@cache
def _answer_of(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True)


@dataclass(frozen=True)
class ReplicaConfig:
    """What a replica is made of: an engine with a cost model in place of its model.

    Attributes:
        cost: how long a step takes.
        num_blocks: size of its KV cache.
        block_size: tokens per block. One hash id of the traffic names one block: 512 tokens in a Mooncake trace.
    """

    cost: CostModel
    scheduler: SchedulerConfig
    num_blocks: int
    block_size: int = 16
    enable_prefix_caching: bool = True

    @property
    def cache_tokens(self) -> int:
        return (self.num_blocks - 1) * self.block_size

    def serve(self, requests: Iterable[TrafficRequest], async_scheduling: bool = False) -> Run:
        """Serve all requests with one such replica, and say when each token came out.

        Args:
            requests: in the order of their arrivals.
            async_scheduling: see `ClockedEngine`.

        A request that could never fit is refused, as a server would do, and counted. The result depends on the
        arguments alone: the same seed, the same run.
        """
        engine = ClockedEngine.made_from(self, async_scheduling=async_scheduling)
        run = engine.run
        for number, arriving in enumerate(requests):
            engine.advance(arriving.arrival)
            try:
                # Its prompt is made up only now: those of a long trace would not fit in memory.
                engine.take(arriving, number, TRACE_BLOCK // self.block_size)
            except ValueError as error:
                run.refused, run.refusal = run.refused + 1, run.refusal or str(error)
        engine.advance(math.inf)
        engine.scheduler.block_manager.check_integrity()
        return run


def block_names(request: TrafficRequest, block_size: int, blocks_per_name: int = 1) -> list[bytes]:
    """Of the full blocks of a prompt that the traffic has names for, as its engine calls them."""
    names = [name.to_bytes(8) + i.to_bytes(2) for name in request.hash_ids for i in range(blocks_per_name)]
    return names[: request.prompt_tokens // block_size]


class ClockedEngine:
    """An engine with a clock in place of a model.

    Most steps of a server are alike: each running request gets one more token, and none comes or goes. The scheduler is
    not asked for each of these. They are counted, and the requests catch up with them when one arrives, one is to end,
    or the blocks run out.

    Args:
        cost: says how many seconds a step takes.
        async_scheduling: decide each step while the one before is computed, as vLLM does, so that the card never
            waits for a decision. The price: a new request waits a step longer, and a finished one keeps its sequence
            and its blocks for one step more.

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
        self._ending: list[Request] = []  # that get their last token in the step that is computed now
        self._repeats = 0  # steps that are known without the scheduler
        self._repeated: list[float] = []  # the ends of those that the requests do not know yet

    @classmethod
    def made_from(
        cls, config: ReplicaConfig, manager: type[BlockManager] = BlockManager, async_scheduling: bool = False
    ) -> Self:
        """With a scheduler and a block manager of its own."""
        sizes = (config.num_blocks, config.block_size, config.enable_prefix_caching)
        return cls(Scheduler(config.scheduler, manager(*sizes)), config.cost, async_scheduling)

    # ------------------------------------------------------------------ requests

    def add(
        self, arriving: TrafficRequest, number: int, prompt: list[int], block_hashes: Sequence[bytes] = ()
    ) -> None:
        """Take a request in, when all steps that begin before its arrival are made (`advance`).

        Args:
            block_hashes: names of the prompt's first blocks, where they are known already.

        Raises:
            ValueError: it could never fit.
        """
        isl, osl, longest = arriving.prompt_tokens, arriving.output_tokens, self.scheduler.max_model_len
        if isl + osl > longest:
            raise ValueError(f"{isl:,} + {osl:,} tokens do not fit a context of {longest:,}")
        self._catch_up()
        request = Request(str(number), prompt, _answer_of(osl), arriving.arrival, arriving.priority)
        request.block_table.block_hashes = list(block_hashes)
        self.scheduler.add(request)
        self.now = max(self.now, arriving.arrival)
        self.unfinished[request.request_id] = RequestRecord(
            arriving.kind, arriving.arrival, isl, osl, queued=self.now
        )
        # It came during the last step, and has waited for its end.
        self.run.in_system_seconds += max(self.now, self._end) - arriving.arrival

    def take(self, arriving: TrafficRequest, number: int, blocks_per_name: int = 1) -> None:
        """As `add`, with a prompt that is made up: its number over and over. The names of its blocks say what it shares."""
        isl, size = arriving.prompt_tokens, self.scheduler.block_manager.block_size
        names = block_names(arriving, size, blocks_per_name)
        own = range(len(names), (isl + arriving.output_tokens) // size)
        self.add(arriving, number, [number] * isl, [*names, *(b"%d block %d" % (number, i) for i in own)])

    def load(self, time: float) -> int:
        """Requests in flight at that time. (Those of a step that is not over yet have their last tokens already.)"""
        leaving = itertools.takewhile(lambda r: r.token_times[-1] > time, reversed(self.run.records))
        return len(self.unfinished) + sum(1 for _ in leaving)

    def _finish(self, request: Request) -> None:
        record = self.unfinished.pop(request.request_id)
        record.num_cached_tokens = request.num_cached_tokens
        record.num_preemptions = request.num_preemptions
        self.run.records.append(record)

    # ------------------------------------------------------------------ steps

    def advance(self, until: float) -> None:
        """Make all steps that are decided before this time."""
        while self.now < until and self.scheduler.has_requests:
            if self._repeats:
                self._repeat()
            else:
                self._catch_up()
                self._step()

    def _step(self) -> None:
        begin = max(self.now, self._end)
        decided = self.decide()
        if decided is None:
            self.now = begin
            return
        output, size = decided
        free = self.scheduler.block_manager.num_free_blocks
        finished = self.hand_out(output, begin, begin + self._note_step(begin, size, free))
        # A step that only decodes, and ends nothing, leaves those that wait where they are.
        settled = not len(self.scheduler.waiting) or (size.num_tokens == size.num_requests and not finished)
        if settled and not output.preempted and not self.async_scheduling:
            self._foresee()

    def _foresee(self) -> None:
        """How often the next step can be repeated, if each running request lacks one token only, the last one."""
        running, manager = self.scheduler.running, self.scheduler.block_manager
        lacks_one = all(r.num_tokens - r.num_computed_tokens == 1 for r in running)
        if running and lacks_one and len(running) <= self.scheduler.config.max_num_batched_tokens:
            self._repeats = min(r.max_tokens - len(r.output_token_ids) for r in running) - 1
            self._free, self._context = manager.num_free_blocks, sum(r.num_tokens for r in running)
            # How many requests begin a block in the first repetition, in the second, ..., until it begins anew.
            self._takers = Counter(-r.num_computed_tokens % manager.block_size for r in running)

    def _repeat(self) -> None:
        """The last step once more, unless the blocks run out."""
        taken = self._takers[len(self._repeated) % self.scheduler.block_manager.block_size]
        if taken > self._free:
            self._repeats = 0
            return
        n, context = len(self.scheduler.running), self._context
        self._repeats, self._free, self._context = self._repeats - 1, self._free - taken, context + n
        size = StepSize(n, n, context, context)
        self.now = self._end = self.now + self._note_step(self.now, size, self._free)
        self._repeated.append(self.now)

    def _catch_up(self) -> None:
        """Tell the running requests of the steps that were repeated."""
        ends, self._repeated, self._repeats = self._repeated, [], 0
        if not ends:
            return
        for request in self.scheduler.running:
            for _ in ends:
                request.append(ANSWER)
            request.num_computed_tokens += len(ends)
            self.scheduler.block_manager.allocate(
                request.block_table, request.token_ids, request.num_computed_tokens
            )
            self.unfinished[request.request_id].token_times += ends

    def decide(self) -> tuple[SchedulerOutput, StepSize] | None:
        """The next step, and how much it has to do. None: nothing, some requests only had to leave."""
        output = self.scheduler.schedule()
        self.run.preemptions += len(output.preempted)
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

    def hand_out(self, output: SchedulerOutput, begin: float, end: float) -> list[Request]:
        """Hand the tokens of a step out that lasts from `begin` to `end`. Returns the requests that it ends."""
        self._end = self.now = end
        sampling = [s.request for s in output.scheduled if s.samples]
        for request in sampling:
            self.unfinished[request.request_id].token_times.append(end)
        if self.async_scheduling:
            # The next step is decided as this one begins. Its tokens are not known yet, only how many there will be: so
            # its requests continue, except for those that get their last token.
            self.now = begin
            self._ending = [r for r in sampling if len(r.output_token_ids) + 1 == r.max_tokens]
        tokens = [[ANSWER] if s.samples and s.request not in self._ending else [] for s in output.scheduled]
        finished = self.scheduler.update(output, tokens)
        for request in finished:
            self._finish(request)
        return finished

    def step_seconds(self, size: StepSize) -> float:
        return self.cost.seconds(size)

    def _note_step(self, begin: float, size: StepSize, free_blocks: int) -> float:
        """Write down a step. Returns the seconds that it takes."""
        seconds, run, limits = self.step_seconds(size), self.run, self.scheduler.config
        running, waiting = len(self.scheduler.running), len(self.scheduler.waiting)
        run.times.append(begin)
        run.durations.append(seconds)
        run.running.append(running)
        run.waiting.append(waiting)
        run.usage.append(1 - free_blocks / (self.scheduler.block_manager.num_blocks - 1))
        run.tokens += size.num_tokens
        run.in_system_seconds += seconds * (running + waiting)
        if size.num_tokens == size.num_requests:
            run.decode_steps += 1
            run.decode_seconds += seconds
        if waiting:
            full = running >= limits.max_num_seqs
            spent = size.num_tokens >= limits.max_num_batched_tokens
            run.waited["max_num_seqs" if full else "token budget" if spent else "KV cache"] += seconds
        return seconds


def simulate(
    requests: Iterable[TrafficRequest],
    config: SchedulerConfig,
    num_blocks: int,
    cost: CostModel,
    async_scheduling: bool = False,
) -> Run:
    """`ReplicaConfig.serve`, with a replica made of these."""
    return ReplicaConfig(cost, config, num_blocks).serve(requests, async_scheduling)
