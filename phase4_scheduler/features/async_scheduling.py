"""Asynchronous steps: while the device computes a step, the host decides and starts the next one.

Changes: a request takes part in a step before the host knows its last token. A placeholder stands for it, which the device
fills in. A step brings its tokens one turn later, and a request that ends at a stop token has been scheduled once too often.

    host     decide 1, start 1 | decide 2, start 2 | read 1 | decide 3, start 3 | read 2 | ...
    device                     | step 1 ........... step 2 .............. step 3 ...

Blocks are freed when the host learns of the end, though a step that still writes to them is under way: the device computes
steps in their order. A step with a request whose sampling needs its answer on the host (penalties, log probabilities, a
grammar) starts when the step before it has been read. Where a step fails, its requests are computed anew in steps that are
not asynchronous, so that fault isolation finds the one to blame.

Attaches to: `Scheduler.tokens_to_compute`, `add_to_step`, `schedule`, `accept`, `preempt`; `ModelRunner.complete`;
`EngineCore.next_results`. The decisions equal those of vLLM 0.32's `AsyncScheduler` on 60 recorded workloads.

Source: vllm/v1/core/sched/async_scheduler.py; step_with_batch_queue in vllm/v1/engine/core.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phase2_attention_kvcache.model.sampling import BadLogitsError, draw
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.truncation import to_probs
from phase4_scheduler.assembly import Feature
from phase4_scheduler.engine.core import EngineCore, EngineDeadError
from phase4_scheduler.engine.model_runner import ModelRunner, Sampled, StepBatch, on_device
from phase4_scheduler.engine.request import Request, RequestStatus
from phase4_scheduler.engine.scheduler import Scheduled, Scheduler, SchedulerOutput
from phase4_scheduler.features.faults import restart, rewind_generator

PLACEHOLDER = -1  # a token that is being sampled; on the device, one that could not be


@dataclass(slots=True)
class ScheduledAhead(Scheduled):
    """Its last token may be a placeholder.

    Attributes:
        length: tokens of the request when the step was decided, placeholders included.
    """

    length: int

    @property
    def samples(self) -> bool:
        return self.num_computed + self.num_tokens == self.length

    @property
    def token_ids(self) -> list[int]:
        known = self.request.token_ids[self.num_computed : self.num_computed + self.num_tokens]
        return known + [PLACEHOLDER] * (self.num_tokens - len(known))


class AsyncScheduler(Scheduler):
    """A request's `extras["num_placeholders"]` counts its tokens that are being sampled."""

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        for s in output.scheduled:
            if s.samples:
                s.request.extras["num_placeholders"] = num_placeholders(s.request) + 1
        return output

    def tokens_to_compute(self, request: Request, computed: int) -> int:
        n = super().tokens_to_compute(request, computed)
        if ahead := num_placeholders(request):
            is_last = len(request.output_token_ids) + ahead == request.max_tokens
            n = 0 if is_last or request.num_tokens + ahead >= self.max_model_len else n + ahead
        return n

    def add_to_step(self, output: SchedulerOutput, request: Request, n: int, computed: int) -> None:
        length = request.num_tokens + num_placeholders(request)
        output.scheduled.append(ScheduledAhead(request, n, computed, length))
        output.budget -= n

    def accept(self, s: Scheduled, tokens: Sequence[int]) -> Sequence[int]:
        request = s.request
        if request.status is RequestStatus.RUNNING:  # not preempted meanwhile
            request.extras["num_placeholders"] -= 1
            self.block_manager.cache_blocks(request.block_table, request.token_ids, request.num_tokens)
        return super().accept(s, tokens)

    def preempt(self, victim: Request) -> None:
        victim.extras["num_placeholders"] = 0
        super().preempt(victim)


def num_placeholders(request: Request) -> int:
    return request.extras.get("num_placeholders", 0)


class AsyncRunner(ModelRunner):
    """Starts a step without waiting for it. The tokens that it samples stay on the device for the next one."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._sampled = torch.empty(0, dtype=torch.long)  # by the last step, on the device
        self._row_of: dict[Request, int] = {}  # where in it
        # Of this step: rows, and where to take them from.
        self._missing: tuple[list[int], list[int]] = ([], [])

    @torch.inference_mode()
    def start(self, output: SchedulerOutput) -> Callable[[], list[Sampled]]:
        """Start a step of requests that `runs_ahead` allows. Returns what waits for its end, and returns its results."""
        scheduled = output.scheduled
        batch = StepBatch.build(scheduled, self.kv_cache.block_size)
        last_rows = [first + n - 1 for first, n in zip(batch.first_rows, batch.query_lens, strict=True)]
        unknown = [i for i, row in enumerate(last_rows) if batch.token_ids[row] == PLACEHOLDER]
        self._missing = [last_rows[i] for i in unknown], [self._row_of[scheduled[i].request] for i in unknown]
        try:
            hidden = self.execute(batch)
        finally:
            self._missing = ([], [])
        ready = [i for i, s in enumerate(scheduled) if s.samples]
        requests = [scheduled[i].request for i in ready]
        self._row_of = {request: row for row, request in enumerate(requests)}
        if not ready:
            return lambda: [Sampled()] * len(scheduled)
        self._sampled = self.pick(self.logits(hidden, [last_rows[i] for i in ready]), requests)
        read = self.to_host(self._sampled)

        def results() -> list[Sampled]:
            tokens = read()
            if PLACEHOLDER in tokens:
                raise BadLogitsError([tokens.index(PLACEHOLDER)], "not finite")
            found = dict(zip(ready, tokens, strict=True))
            return [Sampled([found[i]], [None]) if i in found else Sampled() for i in range(len(scheduled))]

        return results

    def complete(self, token_ids: Tensor) -> None:
        rows, sources = self._missing
        if rows:
            device = token_ids.device
            token_ids[on_device(rows, device)] = self._sampled[on_device(sources, device)].to(token_ids.dtype)

    def pick(self, logits: Tensor, requests: Sequence[Request]) -> Tensor:
        """A token for each row of logits, [B] on the device; PLACEHOLDER where they are not finite."""
        best, tokens = logits.max(dim=-1)
        if drawn := [i for i, request in enumerate(requests) if not request.params.greedy]:
            rows = on_device(drawn, logits.device)
            probs = to_probs(logits[rows], [requests[i].params for i in drawn])
            tokens[rows] = draw(probs, [requests[i].generator for i in drawn], self.generator)
        return torch.where(best.isfinite(), tokens, PLACEHOLDER)

    def to_host(self, tokens: Tensor) -> Callable[[], list[int]]:
        """Begin to copy. Returns what waits for the copy."""
        if tokens.device.type != "cuda":
            return tokens.tolist
        host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
        host.copy_(tokens, non_blocking=True)
        done = torch.cuda.Event()
        done.record()

        def read() -> list[int]:
            done.synchronize()
            return host.tolist()

        return read


Results = tuple[float, SchedulerOutput, list[Sampled]]
Started = tuple[float, SchedulerOutput, Callable[[], list[Sampled]]]


class AsyncCore(EngineCore):
    """Its scheduler is an `AsyncScheduler`, its runner an `AsyncRunner`."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._under_way: Started | None = None  # on the device
        self._decided: tuple[float, SchedulerOutput] | None = None  # starts when that one is read
        self._suspects: set[Request] = set()  # of a step that failed, until they are past the place

    def next_results(self) -> Results:
        """The results of the step under way, while the one that has just been decided runs. None yet: an empty step."""
        with self.deciding:
            began, output = self._decided or (self.clock(), self.scheduler.schedule())
        before, self._under_way, was_decided, self._decided = self._under_way, None, self._decided, None
        if was_decided or not self._runs_ahead(output):
            if before is not None:
                self._decided = began, output
                return self._read(before)
            for s in [s for s in output.scheduled if s.request.finished]:
                output.drop(s.request)  # the step that was read meanwhile ended it
            results = self.execute(output)
            self._suspects -= {s.request for s in output.scheduled if s.samples}
            return began, output, results
        if output.scheduled:
            try:
                self._under_way = began, output, self.runner.start(output)
            except Exception as error:
                return self._restart(error, began, output, before and before[1])
        return self._read(before) if before is not None else (began, SchedulerOutput(), [])

    def _runs_ahead(self, output: SchedulerOutput) -> bool:
        self._suspects = {request for request in self._suspects if not request.finished}
        return not self._suspects and all(runs_ahead(s.request) for s in output.scheduled)

    def _read(self, step: Started) -> Results:
        try:
            return step[0], step[1], step[2]()
        except Exception as error:
            after = self._under_way or self._decided
            self._under_way = self._decided = None
            return self._restart(error, step[0], after and after[1], step[1])

    def _restart(self, error: Exception, began: float, *outputs: SchedulerOutput | None) -> Results:
        """Compute the requests of failed steps anew, the last step's first: they go to the head of the queue."""
        if isinstance(error, EngineDeadError):
            raise error
        with self.deciding:
            for s in [s for output in outputs if output for s in reversed(output.scheduled)]:
                if not s.request.finished:
                    self._suspects.add(s.request)
                    restart(self.scheduler, s.request)
                    rewind_generator(s.request)
        return began, SchedulerOutput(), []


def runs_ahead(request: Request) -> bool:
    """Whether the next token is sampled alike when the host does not know the last one. (A subclass may bring anything.)"""
    p = request.params
    return type(p) is SamplingParams and p.logprobs is p.prompt_logprobs is None and not p.changes_logits(0)


class AsyncScheduling(Feature):
    """Setting: `async_scheduling`."""

    settings = {"async_scheduling": False}
    scheduler, runner, core = AsyncScheduler, AsyncRunner, AsyncCore
    refuses = {
        "Speculation": "how many tokens a step brings is not known when the next one is decided",
        "KVTransfer": "a block may still be written when it is handed over",
        "Swap": "a block may still be written when it is swapped out",
        "Executors": "the ranks sample tokens and do not keep them",
    }
