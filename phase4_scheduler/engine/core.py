"""The engine: requests come in at any time, steps go round, text comes out as it is written.

    add_request -> schedule -> execute -> sample -> update -> hand out

Each turn of that loop serves all requests that have tokens to compute. A request that ends leaves at once, and
one that waits takes its place in the very next step. That is continuous batching (Yu et al., "Orca", 2022,
section 3.1, call it iteration-level scheduling).
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from labkit.interrupts import ctrl_c_waits
from labkit.machine import synchronize
from phase1_tokens_embeddings.tokens.tokenizer import BPETokenizer
from phase2_attention_kvcache.model.sampling import Sampler
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedCache
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine.admission import make_request
from phase4_scheduler.engine.build import build_parts
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.events import Event, StepRecorder
from phase4_scheduler.engine.fault_isolation import restart_step
from phase4_scheduler.engine.output_processor import OutputProcessor, ParentRequest, StepResult
from phase4_scheduler.engine.outputs import RequestOutput
from phase4_scheduler.engine.scheduler import Scheduler, SchedulerOutput


class EngineCore:
    """Serves many requests with one model. `LLMEngine` adds what most users want on top.

    Args:
        model: runs the tokens.
        tokenizer: text to ids and back; None: prompts are token ids, and outputs have no text.
        config: see `EngineConfig`.
        block_manager, scheduler, kv_cache: your own parts instead of the course's.
        clock: seconds; replaceable for tests.

    Source: vllm/v1/engine/core.py and llm_engine.py.
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
        self.output_processor = OutputProcessor()
        self.num_steps = 0
        self._recorder: StepRecorder | None = None
        self._outputs: list[RequestOutput] = []  # of a step that an interruption kept from its caller
        self._num_idle_steps = 0
        torch.manual_seed(self.config.seed)

    # ------------------------------------------------------------------ one turn of the loop

    def step(self) -> list[RequestOutput]:
        """Schedule, execute, sample, update, hand out. Returns what is new: one output for each sequence that grew.

        Ctrl-C takes effect when the step is complete; what it brought comes with the next one.
        """
        with self.output_processor.interruptions_wait(), ctrl_c_waits():
            began = self.clock()
            output = self.scheduler.schedule()
            try:
                result = self.runner.execute_step(output)
                self._fork_sequences(result)
                self.runner.sample_step(result, self.sampler, self.output_processor.states)
            except BaseException:  # the model cannot go on at all: nothing of this step counts
                restart_step(output, self.scheduler, self.output_processor.states)
                raise
            if self._recorder:
                synchronize(self.model.device.type)  # a GPU may still be at it, and the next step would pay
            now = self.clock()
            failed = self._end_faulty(result)
            self.scheduler.update(
                output, [result.token_ids.get(s.request.request_id) for s in output.scheduled]
            )
            self._outputs += self._hand_out(result, began, now, failed)
            self._count(output, began, now)
        outputs, self._outputs = self._outputs, []
        return outputs

    def _fork_sequences(self, result: StepResult) -> None:
        """Where a prompt with n > 1 is computed, its other sequences go on from the same blocks and the same row."""
        for s in list(result.output.scheduled):
            first = result.first_row.get(s.request.request_id)
            while s.request.num_seqs > 1 and s.samples and first is not None:
                state = self.output_processor.next_sequence(s.request)
                self.scheduler.fork(result.output, s.request, state.request)
                self.output_processor.add_sequence(state)  # only now: a fork that fails leaves nothing behind
                result.first_row[state.request.request_id] = (
                    first + s.num_tokens
                )  # its last row is the parent's

    def _hand_out(
        self,
        result: StepResult,
        began: float,
        now: float,
        failed: list[tuple[ParentRequest, RequestOutput]],
    ) -> list[RequestOutput]:
        """The step's outputs, each told to its request's `on_output`; those of failed requests last."""
        processor = self.output_processor
        grown, stopped = processor.process(result, began, now)
        for request in stopped:
            self.scheduler.finish(request, "stop")
        outputs: list[RequestOutput] = []
        last: list[RequestOutput] = [output for _, output in failed]
        for parent, output in grown:
            if processor.parents.get(parent.request_id) is not parent:
                continue  # an on_output has just aborted it
            if output.finished:
                del processor.parents[parent.request_id]
            outputs.append(output)
            error = processor.tell(parent, output)
            if error and processor.parents.get(parent.request_id) is parent:
                last.append(self._end(parent, "error", error))
        for parent, output in failed:
            processor.tell(parent, output)
        return outputs + last

    def _count(self, output: SchedulerOutput, began: float, now: float) -> None:
        """Count the step and write it down; notice a scheduler that schedules nothing for ever."""
        if output.scheduled:
            if self._recorder and not self._recorder.record(self.num_steps, output, began, now):
                self.record(None)
            self.num_steps += 1
        idle = not output.scheduled and not output.preempted and self.scheduler.has_requests
        self._num_idle_steps = self._num_idle_steps + 1 if idle else 0
        if self._num_idle_steps > 2:
            raise RuntimeError("requests wait, and the scheduler schedules none of them: it is stuck")

    # ------------------------------------------------------------------ the one place where requests end early

    def _end_faulty(self, result: StepResult) -> list[tuple[ParentRequest, RequestOutput]]:
        """End the requests that failed in this step, restart those that counted on them."""
        for request in result.to_restart:
            self.scheduler.restart(request)
        failed = []
        for request, message in result.faults:
            state = self.output_processor.states.get(request.request_id)
            if state is not None:  # otherwise it ended with another sequence of its parent
                failed.append((state.parent, self._end(state.parent, "error", message, trusted=False)))
        return failed

    def _end(
        self, parent: ParentRequest, reason: str, error: str | None = None, trusted: bool = True
    ) -> RequestOutput:
        """End all sequences of a request that are still being written. Returns its last output.

        `trusted`: whether its blocks hold what their hashes say. After an error of the model they may not.
        """
        for state in self.output_processor.living(parent):
            if not trusted:  # no prefix may hit these blocks
                self.block_manager.uncache(state.request.block_table)
            self.scheduler.finish(state.request, reason)
        return self.output_processor.end(parent, reason, self.clock(), error)

    # ------------------------------------------------------------------ requests come and go

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self.output_processor.parents) or bool(self._outputs)

    def add_request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        priority: int = 0,
        arrival_time: float | None = None,
        on_output: Callable[[RequestOutput], None] | None = None,
    ) -> None:
        """Queue up a request. The next steps serve it.

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
        if request_id in self.output_processor.parents or request_id in self.output_processor.states:
            raise ValueError(f"request id {request_id!r} is in use: give each request an id of its own")
        text = prompt if isinstance(prompt, str) else None
        parent = ParentRequest(request, text, self.tokenizer, on_output)
        self.scheduler.add(request)
        self.output_processor.add(parent)

    def abort(self, request_id: str) -> bool:
        """End a request now and free what it holds. False if no such request is alive.

        Its `on_output` gets a last output, with finish_reason "abort".
        """
        parent = self.output_processor.parents.get(request_id)
        if parent is None:
            return False
        self.output_processor.tell(parent, self._end(parent, "abort"))
        self.output_processor.raise_interruption()
        return True

    def record(self, where: str | Path | Callable[[Event], None] | None) -> None:
        """Write down every step from now on: into a file of JSON lines, or into a function. None stops it."""
        recorder = None if where is None else StepRecorder(where, self.scheduler)
        self._recorder = recorder  # a place that cannot be written leaves the recording as it was
        if recorder is None:
            self.block_manager.journal = None
