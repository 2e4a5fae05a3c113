"""The engine's core: the loop that runs steps. Requests may arrive at any time. It handles token ids, not text.

Each iteration of the loop serves all requests that have tokens to compute. A finished request leaves at once, and a waiting
request takes its place in the next step. This is continuous batching (Yu et al., "Orca", 2022, section 3, call it
iteration-level scheduling).
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import phase4_scheduler
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.model_runner import ModelRunner, Sampled
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import Scheduled, Scheduler, SchedulerOutput

Clock = Callable[[], float]  # seconds


class EngineDeadError(RuntimeError):
    """No step can run any more, for any request. Source: vllm/v1/engine/exceptions.py."""


@dataclass(slots=True)
class EngineCoreOutput:
    """The output of a step for one request, as plain data.

    Attributes:
        token_ids: the new tokens; none: the request failed.
        logprobs: of each new token, or None.
        error: what went wrong, if finish_reason is "error".
        extras: values from extensions of the core, by the name under which the user finds them.
        Others: as in `Request`.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[dict[int, float] | None]
    finish_reason: str | None
    stop_reason: int | None
    queued_time: float
    first_scheduled_time: float | None
    num_cached_tokens: int
    num_preemptions: int
    error: str | None = None
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass
class EngineCoreOutputs:
    """A step: its outputs, its schedule, and the times at which it began and ended."""

    outputs: list[EngineCoreOutput]
    scheduler_output: SchedulerOutput
    began: float
    ended: float


class EngineCore:
    """Runs steps for many requests.

    Args:
        scheduler: with its block manager.
        runner: with the model and a cache of as many blocks.
        clock: seconds; replaceable for tests.

    Attributes:
        requests: all unfinished requests, by id.
        deciding: held while blocks and queues change. Other threads may add and finish requests while the model computes.
        kv_caches: the runner's cache, and the caches of extensions that use the same block tables.

    Source: vllm/v1/engine/core.py.
    """

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, clock: Clock = time.perf_counter) -> None:
        self.scheduler, self.runner, self.clock = scheduler, runner, clock
        self.block_manager, self.model = scheduler.block_manager, runner.model
        self.requests: dict[str, Request] = {}
        self.kv_caches = [runner.kv_cache]  # all that follow this block manager
        self.deciding = threading.RLock()
        self.num_steps = 0
        self._num_idle_steps = 0

    # ------------------------------------------------------------------ one turn of the loop

    def step(self) -> EngineCoreOutputs:
        """Schedule, execute and sample, update, hand out: one output for each request that grew."""
        began, output, results = self.next_results()
        ended = self.clock()
        with self.deciding:
            known = [len(s.request.token_ids) for s in output.scheduled]
            self.scheduler.update(output, [result.token_ids for result in results])
            outputs = []
            for s, result, num_known in zip(output.scheduled, results, known, strict=True):
                request = s.request
                if request.first_scheduled_time is None:
                    request.first_scheduled_time = began
                # Otherwise it is still in its prompt, or it was aborted meanwhile.
                if len(request.token_ids) > num_known and self.requests.get(request.request_id) is request:
                    outputs.append(self.hand_out(s, result, request.token_ids[num_known:]))
            self.num_steps += bool(output.scheduled)
            busy = output.scheduled or output.preempted or self.scheduler.waits_for_others
            self._num_idle_steps = 0 if busy or not self.scheduler.has_requests else self._num_idle_steps + 1
            if self._num_idle_steps > 2:
                raise RuntimeError("requests wait, and the scheduler schedules none of them: it is stuck")
            return EngineCoreOutputs(outputs, output, began, ended)

    def next_results(self) -> tuple[float, SchedulerOutput, list[Sampled]]:
        """The start time, the schedule and the results of the next step. An extension may run several steps at once."""
        began = self.clock()
        with self.deciding:
            output = self.scheduler.schedule()
        return began, output, self.execute(output)

    def execute(self, output: SchedulerOutput) -> list[Sampled]:
        """What `ModelRunner.run` returns. An extension may do something before it or after it."""
        return self.runner.run(output)

    def hand_out(self, s: Scheduled, result: Sampled, token_ids: list[int]) -> EngineCoreOutput:
        """The output of this step for a request. `token_ids` stop where the request ends."""
        request = s.request
        if request.finished:
            del self.requests[request.request_id]
        return output_of(request, token_ids, list(result.logprobs[: len(token_ids)]))

    # ------------------------------------------------------------------ requests come and go

    def add(self, request: Request) -> None:
        """Queue up a request. The next steps serve it.

        Raises:
            ValueError: its id is in use, or it could never be served. The core is as it was before.
        """
        if (name := request.request_id) in self.requests:
            raise ValueError(f"request id {name!r} is in use: give each request an id of its own")
        request.queued_time = self.clock()
        with self.deciding:
            self.scheduler.add(request)
            self.requests[name] = request

    def finish(self, request_id: str, reason: str) -> None:
        """End a request and free its blocks. Does nothing if it has already ended."""
        with self.deciding:
            request = self.requests.pop(request_id, None)
            if request is not None:
                self.scheduler.finish(request, reason)

    def shutdown(self) -> None:
        """Stop everything that the core runs outside this process."""
        self.runner.shutdown()


def output_of(r: Request, token_ids: list[int], logprobs: list, error: str | None = None) -> EngineCoreOutput:
    """The output of a step for a request: its state, and its new tokens."""
    times = (r.queued_time, r.first_scheduled_time)
    ends, counts = (r.finish_reason, r.stop_reason), (r.num_cached_tokens, r.num_preemptions)
    return EngineCoreOutput(r.request_id, token_ids, logprobs, *ends, *times, *counts, error)


def build_core(
    model: Transformer, config: EngineConfig, *, clock: Clock = time.perf_counter, **parts: Any
) -> EngineCore:
    """The core of an engine, from the assembly; with `ASSEMBLY` None from the plain parts, which need `config.num_blocks`.

    Args:
        parts: further arguments of the assembly: parts of your own, and settings of extensions.
    """
    if phase4_scheduler.ASSEMBLY is not None:
        return import_module(phase4_scheduler.ASSEMBLY).build_core(model, config, clock=clock, **parts)
    longest = config.max_model_len or model.config.max_context
    manager = BlockManager(config.num_blocks, config.block_size, config.enable_prefix_caching)
    scheduler = Scheduler(replace(config, max_model_len=longest), manager)
    return EngineCore(scheduler, ModelRunner.create(model, config, manager.num_blocks), clock)
