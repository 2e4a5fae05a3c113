"""The engine: requests come in at any time, steps go round, text comes out as it is written.

    add_request -> scheduler.schedule -> model -> sampler -> scheduler.update -> text, outputs, events

Each turn of that loop serves everybody who has a part in it. A request that ends leaves at once, and one
that waits takes its place in the very next step. That is continuous batching (Yu et al., "Orca", 2022,
section 3.1, call it iteration-level scheduling).
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from labkit.interrupts import ctrl_c_waits
from labkit.machine import pick_device, synchronize
from labkit.models import find_model
from phase1_tokens_embeddings.tokens.tokenizer import BPETokenizer
from phase2_attention_kvcache.model.packed_linear import can_pack, pack_linear_layers
from phase2_attention_kvcache.model.sampling import Sampler
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedCache
from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.paging.block_table import BlockJournal
from phase4_scheduler.engine.answers import Answer, Group, accumulate
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.engine_parts import build_parts
from phase4_scheduler.engine.events import Event, into_file, step_event
from phase4_scheduler.engine.outputs import Completion, RequestOutput
from phase4_scheduler.engine.request import make_request
from phase4_scheduler.engine.scheduler import Scheduler, SchedulerOutput
from phase4_scheduler.engine.step_work import StepWork


class LLMEngine:
    """Serves many requests with one model.

    Args:
        model: runs the tokens.
        tokenizer: text to ids and back; None: prompts are token ids, and outputs have no text.
        config: see `EngineConfig`.
        block_manager, scheduler, kv_cache: your own parts instead of the course's.
        clock: seconds; replaceable for tests.

    >>> engine = LLMEngine.from_pretrained("tales", dtype="bfloat16")
    >>> engine.generate(["Once upon a time", "The king"], SamplingParams(max_tokens=20))[0].text
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: BPETokenizer | None = None,
        config: EngineConfig | None = None,
        *,
        block_manager: BlockManager | None = None,
        scheduler: Scheduler | None = None,
        kv_cache: PagedCache | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model, self.tokenizer, self.clock = model, tokenizer, clock
        self.config = config or EngineConfig()
        self.scheduler, self.runner = build_parts(model, self.config, block_manager, scheduler, kv_cache)
        self.block_manager = self.scheduler.block_manager
        self.sampler = Sampler(model.config.eos_token_ids)
        self._answers: dict[str, Answer] = {}  # by the scheduler's request id
        self._groups: dict[str, Group] = {}  # by the user's
        self._failed: list[tuple[Group, RequestOutput, bool]] = []  # the flag: whether on_output is to know
        self._telling = False  # whether an on_output is being called
        self._ready: list[RequestOutput] = []  # outputs of a step that an interruption kept back
        self._interruption: BaseException | None = None  # Ctrl-C or exit, raised by an on_output
        self._record: Callable[[Event], None] | None = None
        self.num_steps = 0
        self._idle_steps = 0
        self._next_id = 0
        torch.manual_seed(self.config.seed)

    @classmethod
    def from_pretrained(
        cls, path_or_name: str | Path, dtype: str = "bfloat16", device: str = "auto", **settings: Any
    ) -> LLMEngine:
        """Load a model and its tokenizer. `settings` are the fields of `EngineConfig`.

        Raises:
            LabError: no such model or device. ValueError: a setting out of range, or unknown.
        """
        known = {f.name for f in fields(EngineConfig)}
        if unknown := sorted(set(settings) - known):
            raise ValueError(f"unknown setting {unknown[0]!r}: the engine knows {', '.join(sorted(known))}")
        folder = find_model(path_or_name)
        model = Transformer.from_pretrained(folder, dtype, pick_device(device))
        if can_pack(model):
            pack_linear_layers(model)
        file = folder / "tokenizer.json"
        tokenizer = BPETokenizer.from_file(file) if file.is_file() else None
        return cls(model, tokenizer, EngineConfig(**settings))

    # ------------------------------------------------------------------ for most users

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts; return when all are done.

        Args:
            prompts: texts or lists of token ids (or a single text).
            params: for all of them, or one for each.

        Returns:
            Complete outputs, in the order of the prompts. Requests that others added go on as well; what
            they wrote meanwhile reaches them through their own `on_output`.

        Raises:
            ValueError: a prompt or its parameters cannot be served. Then nothing was started.
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"{len(params)} params for {len(prompts)} prompts: give one, or one for each")
        ids: list[str] = []
        whole: dict[str, RequestOutput] = {}
        waiting: set[str] = set()

        def collect(output: RequestOutput) -> None:  # also when somebody else drives the loop
            accumulate(whole, output)
            if output.finished:
                waiting.discard(output.request_id)

        try:
            for prompt, p in zip(prompts, params, strict=True):
                request_id = self._new_id()
                self.add_request(request_id, prompt, p, on_output=collect)
                ids.append(request_id)
            waiting.update(ids)
            while waiting:
                self.step()
        except BaseException:
            for request_id in ids:
                self.abort(request_id)
            raise
        return [whole[request_id] for request_id in ids]

    def stream(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Answer one prompt; yield what is new after each step. Whoever stops reading aborts the request."""
        request_id = self._new_id()
        inbox: deque[RequestOutput] = deque()  # steps that others drive bring something as well
        self.add_request(request_id, prompt, params, on_output=inbox.append)
        try:
            done = False
            while not done:
                if inbox:
                    done = inbox[0].finished
                    yield inbox.popleft()
                else:
                    self.step()
        finally:
            self.abort(request_id)

    def _new_id(self) -> str:
        while True:
            self._next_id += 1
            if (request_id := f"request-{self._next_id}") not in self._groups:
                return request_id

    # ------------------------------------------------------------------ for whoever drives the loop

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self._groups) or bool(self._failed) or bool(self._ready)

    def add_request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        priority: int = 0,
        arrival_time: float | None = None,
        on_output: Callable[[RequestOutput], None] | None = None,
    ) -> None:
        """Queue up a request. It has its part in the next steps.

        Args:
            on_output: called with every output of this request, its abort included. It may add and abort
                requests. If it raises, this request alone fails.

        Raises:
            ValueError: the id is in use, the prompt is empty or too long, or a parameter cannot be served.
                The engine is as it was before.
        """
        arrival_time = self.clock() if arrival_time is None else arrival_time
        request = make_request(
            request_id, prompt, params, priority, arrival_time, self.model.config, self.tokenizer
        )
        if request_id in self._groups or request_id in self._answers:
            raise ValueError(f"request id {request_id!r} is in use: give each request an id of its own")
        group = Group(prompt if isinstance(prompt, str) else None, request, self.tokenizer, on_output)
        self.scheduler.add(request)
        self._groups[request_id] = group
        self._answers[request_id] = group.answers[0]

    def abort(self, request_id: str) -> bool:
        """End a request now and free what it holds. False if no such request is alive.

        Its `on_output` gets a last output, with finish_reason "abort".
        """
        group = self._groups.get(request_id)
        if group is None:
            return False
        self._tell(group, self._end(group, "abort"))
        if not self._telling:
            self._raise_interruption()
        return True

    def record(self, where: str | Path | Callable[[Event], None] | None) -> None:
        """Write down every step from now on: into a file of JSON lines, or into a function. None stops it."""
        self._record = where if where is None or callable(where) else into_file(where)
        self.block_manager.journal = None if where is None else BlockJournal()

    # ------------------------------------------------------------------ one turn of the loop

    def step(self) -> list[RequestOutput]:
        """Decide, compute, sample, hand out. Returns what is new, one output for each answer that grew.

        Ctrl-C takes effect when the step is complete; what it brought comes with the next one.
        """
        if self._telling:
            raise RuntimeError("a step is under way: on_output may add and abort requests, but start no step")
        with ctrl_c_waits():
            self._ready += self._whole_step()
        self._raise_interruption()
        outputs, self._ready = self._ready, []
        return outputs

    def _whole_step(self) -> list[RequestOutput]:
        began = self.clock()
        output = self.scheduler.schedule()
        if not output.scheduled:
            return self._nothing_to_compute(output)
        work = StepWork(output, self.scheduler, self.runner, self.sampler, self._answers, self._fail)
        try:
            work.run()
        except BaseException:  # the model cannot go on at all: nothing of this step counts
            self._take_back(output)
            raise
        if self._record:
            synchronize(self.model.device.type)  # a GPU may still be at it, and the next step would pay
        now = self.clock()
        self.scheduler.update(output, work.tokens)
        outputs = self._hand_out(work, began, now)
        if self._record:
            self._record_step(output, began, now)
        self.num_steps += 1
        self._idle_steps = 0
        return outputs

    def _nothing_to_compute(self, output: SchedulerOutput) -> list[RequestOutput]:
        self.runner.kv_cache.apply_copies(output.copies)
        if not self.scheduler.has_requests or output.preempted:
            self._idle_steps = 0
        else:
            self._idle_steps += 1
            if self._idle_steps > 2:
                raise RuntimeError("requests wait, and the scheduler schedules none of them: it is stuck")
        return self._take_failed()

    def _hand_out(self, work: StepWork, began: float, now: float) -> list[RequestOutput]:
        """Turn a step's tokens into outputs, and tell those who want to be told."""
        grown: list[tuple[Group, RequestOutput]] = []
        for s, token in zip(work.output.scheduled, work.tokens, strict=True):
            answer = self._answers.get(s.request.request_id)
            if answer is None:
                continue  # failed in this step
            metrics = answer.metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = began
                metrics.num_cached_tokens = s.request.num_cached_tokens
            if token is not None:
                metrics.token_times.append(now)
                out = self._output_of(answer, token, work.logprobs.get(s.request.request_id), now)
                grown.append((answer.group, out))
        outputs: list[RequestOutput] = []
        for group, out in grown:
            if self._groups.get(out.request_id) is not group:
                continue  # the on_output of another one has just aborted it
            if out.finished:
                del self._groups[out.request_id]
            outputs.append(out)
            if error := self._tell(group, out):
                self._fail(group, f"on_output raised {type(error).__name__}: {error}", tell=False)
        return outputs + self._take_failed()

    def _tell(self, group: Group, output: RequestOutput) -> Exception | None:
        """Call the request's own `on_output`, if it has one. Returns what that raised."""
        if group.on_output is None:
            return None
        outer, self._telling = self._telling, True
        try:
            group.on_output(output)
        except Exception as error:
            return error
        except BaseException as error:  # Ctrl-C in there: the others get their outputs first
            self._interruption = error
        finally:
            self._telling = outer
        return None

    def _raise_interruption(self) -> None:
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            raise interruption

    def _output_of(
        self, answer: Answer, token: int, logprobs: dict[int, float] | None, now: float
    ) -> RequestOutput:
        """What is new of an answer. Stop strings are found here, since only text can show them."""
        request, group, text = answer.request, answer.group, ""
        if answer.text is not None:
            ended_by_token = request.finish_reason == "stop"
            if not ended_by_token or group.params.include_stop_str_in_output:
                text = answer.text.push(token)
            if answer.text.stopped_by is not None:
                self.scheduler.finish(request, "stop")
                request.finish_reason, request.stop_reason = "stop", answer.text.stopped_by
            elif request.finished:
                text += answer.text.finish()
                if answer.text.stopped_by is not None:
                    request.finish_reason, request.stop_reason = "stop", answer.text.stopped_by
        if request.finished:
            answer.metrics.finished_time = now
            answer.metrics.num_preemptions = request.num_preemptions
            group.unfinished -= 1
            del self._answers[request.request_id]
        part = Completion(
            answer.index,
            [token],
            text,
            answer.metrics,
            request.finish_reason,
            request.stop_reason,
            None if logprobs is None else [logprobs],
        )
        return group.output([part], finished=group.unfinished == 0)

    # ------------------------------------------------------------------ when things go wrong

    def _end(
        self, group: Group, reason: str, error: str | None = None, trusted: bool = True
    ) -> RequestOutput:
        """End those answers of a request that are still being written. Returns its last output.

        `trusted`: whether its blocks hold what their names say. After an error of the model they may not.
        """
        del self._groups[group.request_id]
        now, ended = self.clock(), []
        for answer in group.answers:
            if self._answers.pop(answer.request.request_id, None) is None:
                continue  # this one was complete
            if not trusted:  # nobody may hit these blocks
                self.block_manager.uncache(answer.request.block_table)
            self.scheduler.finish(answer.request, reason)
            answer.metrics.finished_time = now
            answer.metrics.num_preemptions = answer.request.num_preemptions
            text = answer.text.finish() if answer.text else ""  # what waited for a stop string to go on
            ended.append(Completion(answer.index, [], text, answer.metrics, reason))
        if not ended:
            ended = [Completion(0, [], "", group.answers[0].metrics, reason)]
        return group.output(ended, finished=True, error=error)

    def _fail(self, group: Group, message: str, tell: bool = True) -> None:
        """End a request with an error. Its last output goes out with those of this step.

        `tell`: False if its own on_output is what failed; then nothing is wrong with what was computed.
        """
        if self._groups.get(group.request_id) is group:  # otherwise it failed already
            last = self._end(group, "error", message, trusted=not tell)
            self._failed.append((group, last, tell))

    def _take_failed(self) -> list[RequestOutput]:
        failed, self._failed = self._failed, []
        for group, output, tell in failed:
            if tell:
                self._tell(group, output)
        return [output for _, output, _ in failed]

    def _take_back(self, output: SchedulerOutput) -> None:
        """Nothing of this step counts: whoever had a part in it goes back to the queue."""
        for s in reversed(output.scheduled):
            self.scheduler.restart(s.request)
            if answer := self._answers.get(s.request.request_id):
                # It may have thrown its dart already. Its source of chance begins again, too.
                answer.generator = answer.group.params.make_generator(answer.index)
                if answer.generator is not None:
                    torch.rand(
                        len(s.request.output_token_ids), dtype=torch.float64, generator=answer.generator
                    )
        for request in output.preempted:  # its blocks may not have reached the swap space
            self.block_manager.free(request.block_table)
            request.num_computed_tokens = 0

    def _record_step(self, output: SchedulerOutput, began: float, now: float) -> None:
        journal = self.block_manager.journal or BlockJournal()
        self.block_manager.journal = BlockJournal()
        try:
            self._record(step_event(self.num_steps, output, self.scheduler, journal, began, now))
        except Exception as error:  # whoever listens must not stop the engine
            self.record(None)
            warnings.warn(f"recording stopped: {type(error).__name__}: {error}", stacklevel=3)
