"""The engine's core: requests in tokens come in at any time, steps go round, tokens come out. It knows no text.

    add -> schedule -> execute -> sample -> update -> hand out

Each turn of that loop serves all requests that have tokens to compute. A request that ends leaves at once, and
one that waits takes its place in the very next step. That is continuous batching (Yu et al., "Orca", 2022,
section 3.1, call it iteration-level scheduling).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from labkit.machine import synchronize
from phase2_attention_kvcache.model.sampling import Sampler
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedCache
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine.build import build_parts
from phase4_scheduler.engine.build_speculation import build_speculation, load_draft_model
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.executor import Executor
from phase4_scheduler.engine.fault_isolation import restart_step
from phase4_scheduler.engine.kv_connector import KVConnectorOutput, KVTransferParams
from phase4_scheduler.engine.model_runner import ModelRunnerOutput
from phase4_scheduler.engine.proposers import Proposer
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import Scheduler
from phase4_scheduler.engine.scheduler_output import SchedulerOutput
from phase4_scheduler.engine.spare_cores import SpareCores


@dataclass(slots=True)
class EngineCoreOutput:
    """What a step brought for one sequence: plain data.

    Attributes:
        request_id, index: whose it is: sequence `index` of a user's request.
        token_ids: those that are new: one, or several where drafts stood; none: the request failed.
        logprobs: of each of them, or None.
        error: what went wrong, if finish_reason is "error".
        prompt_logprobs: with the first token, if they were asked for.
        kv_transfer_params: with the last one, what a KV connector says of its blocks.
        Others: as in `Request`.
    """

    request_id: str
    index: int
    token_ids: list[int]
    logprobs: list[dict[int, float] | None]
    finish_reason: str | None
    stop_reason: int | None
    error: str | None
    queued_time: float
    first_scheduled_time: float | None
    num_cached_tokens: int
    num_preemptions: int
    prompt_logprobs: list[dict[int, float] | None] | None
    kv_transfer_params: KVTransferParams | None = None


@dataclass
class EngineCoreOutputs:
    """A step: what it brought, what it did, and from when to when it ran."""

    outputs: list[EngineCoreOutput]
    scheduler_output: SchedulerOutput
    began: float
    ended: float


class EngineCore:
    """Runs steps for many requests with one model.

    Args:
        model: runs the tokens.
        config: see `EngineConfig`.
        block_manager, scheduler, kv_cache, proposer: your own parts instead of the course's. A KV connector comes with
            the scheduler.
        clock: seconds; replaceable for tests.
        executor: holds the model in other processes; `model` is then the executor's.

    Attributes:
        sequences: by the id that its user gave a request, those of its n sequences that are alive.
        speculation: makes drafts, where that was asked for.

    Source: vllm/v1/engine/core.py.
    """

    def __init__(
        self,
        model: Transformer,
        config: EngineConfig,
        block_manager: BlockManager | None = None,
        scheduler: Scheduler | None = None,
        kv_cache: PagedCache | None = None,
        clock: Callable[[], float] = time.perf_counter,
        proposer: Proposer | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.model, self.config, self.clock = model, config, clock
        draft_model = load_draft_model(scheduler.config if scheduler else config, model)
        self.scheduler, self.runner = build_parts(
            model, config, block_manager, scheduler, kv_cache, draft_model, executor
        )
        self.speculation = build_speculation(
            self.scheduler, model, draft_model, proposer, config.enforce_eager
        )
        self.block_manager, self.connector = self.scheduler.block_manager, self.scheduler.connector
        self.sampler = Sampler(model.config.eos_token_ids)
        self.sequences: dict[str, list[Request]] = {}
        self._alive: dict[str, Request] = {}  # all sequences, by their own ids
        self.num_steps = 0
        self._num_idle_steps = 0
        torch.manual_seed(config.seed)
        self._executor = executor
        self._spare_cores = SpareCores()

    def shutdown(self) -> None:
        """End the processes that hold the model, if there are any."""
        if self._executor is not None:
            self._executor.shutdown()

    # ------------------------------------------------------------------ one turn of the loop

    def step(self) -> EngineCoreOutputs:
        """Schedule, execute, sample, update, hand out: one output for each sequence that grew or failed."""
        began = self.clock()
        output = self.scheduler.schedule()
        if self.connector is not None:
            self.connector.start_load_kv(output.kv_connector_metadata)
        try:
            with self._spare_cores.threads():
                result = self.runner.execute_step(output)
                self._fork_sequences(output, result)
                self.runner.sample_step(output.scheduled, result, self.sampler)
                if self.speculation is not None:
                    self.speculation.draft(output, result)
        except BaseException:  # the model cannot go on at all: nothing of this step counts
            restart_step(output, self.scheduler)
            raise
        if self.block_manager.journal is not None:  # steps are recorded
            synchronize(self.model.device.type)  # a GPU may still be at it, and the next step would pay
        ended = self.clock()
        failed = self._end_faulty(result)
        sampled = [result.sampled.get(s.request.request_id, (None, None)) for s in output.scheduled]
        self.scheduler.update(output, [tokens for tokens, _ in sampled])
        outputs: list[EngineCoreOutput] = []
        for s, (tokens, logprobs) in zip(output.scheduled, sampled, strict=True):
            if s.request.first_scheduled_time is None:
                s.request.first_scheduled_time = began
            # Otherwise it is still in its prompt, or it failed or was aborted meanwhile.
            if tokens is not None and self._alive.get(s.request.request_id) is s.request:
                kept = s.request.token_ids[s.num_certain :]  # what came behind its end does not count
                outputs.append(self._hand_out(s.request, kept, logprobs[: len(kept)]))
        if self.connector is not None:
            sent, received = self.connector.get_finished()
            invalid = self.connector.get_block_ids_with_load_errors()
            self.scheduler.update_connector(KVConnectorOutput(sent, received, invalid))
        self._count(output)
        return EngineCoreOutputs(outputs + failed, output, began, ended)

    def _fork_sequences(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """Where a prompt with n > 1 is computed, its other sequences go on from the same blocks and the same row."""
        for s in list(output.scheduled):
            request, first = s.request, result.first_row.get(s.request.request_id)
            while request.num_seqs > 1 and s.samples and first is not None:
                index = request.params.n - request.num_seqs + 1
                request_id = f"{request.parent_id}#{index}"
                while request_id in self._alive:
                    request_id += "#"
                other = request.sibling(request_id, index)
                self.scheduler.fork(output, request, other)
                self._add(other)  # only now: a fork that fails leaves nothing behind
                result.first_row[request_id] = first + s.num_tokens  # its last row is the parent's

    def _hand_out(
        self, request: Request, tokens: list[int], logprobs: list, error: str | None = None
    ) -> EngineCoreOutput:
        if request.finished:
            self._remove(request)
        first = len(request.output_token_ids) == len(tokens)
        return EngineCoreOutput(
            request.parent_id,
            request.index,
            tokens,
            logprobs,
            request.finish_reason,
            request.stop_reason,
            error,
            request.queued_time,
            request.first_scheduled_time,
            request.num_cached_tokens,
            request.num_preemptions,
            request.prompt_logprobs if first else None,
            request.kv_transfer_params if request.finished else None,
        )

    def _end_faulty(self, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """End the requests that failed in this step, restart those that counted on them."""
        for request in result.to_restart:
            self.scheduler.restart(request)
        failed = []
        for request, message in result.faults:
            if request.parent_id in self.sequences:  # otherwise it ended with another of its sequences
                for sequence in self.sequences[request.parent_id]:
                    # Its blocks may not hold what their hashes say: no prefix may hit them.
                    self.block_manager.uncache(sequence.block_table)
                self.finish(request.parent_id, "error")
                failed.append(self._hand_out(request, [], [], message))
        return failed

    def _count(self, output: SchedulerOutput) -> None:
        """Count the step; notice a scheduler that schedules nothing for ever."""
        self.num_steps += bool(output.scheduled)
        idle = not (output.scheduled or output.preempted or self.scheduler.is_transferring)
        idle = idle and self.scheduler.has_requests
        self._num_idle_steps = self._num_idle_steps + 1 if idle else 0
        if self._num_idle_steps > 2:
            raise RuntimeError("requests wait, and the scheduler schedules none of them: it is stuck")

    # ------------------------------------------------------------------ requests come and go

    def add(self, request: Request) -> None:
        """Queue up a request. The next steps serve it.

        Raises:
            ValueError: its id is in use, or it could never be served. The core is as it was before.
        """
        request_id = request.request_id
        if request_id in self.sequences or request_id in self._alive:
            raise ValueError(f"request id {request_id!r} is in use: give each request an id of its own")
        request.queued_time = self.clock()
        self.scheduler.add(request)
        self._add(request)

    def finish(self, request_id: str, reason: str, index: int | None = None) -> None:
        """End a request, or one of its sequences, and free what it holds. Fine if it has ended already."""
        for request in list(self.sequences.get(request_id, ())):
            if index is None or request.index == index:
                self.scheduler.finish(request, reason)
                self._remove(request)

    def _add(self, request: Request) -> None:
        self.sequences.setdefault(request.parent_id, []).append(request)
        self._alive[request.request_id] = request

    def _remove(self, request: Request) -> None:
        if self._alive.get(request.request_id) is request:
            del self._alive[request.request_id]
            self.sequences[request.parent_id].remove(request)
            if not self.sequences[request.parent_id]:
                del self.sequences[request.parent_id]
