"""Fault isolation: a request that breaks its step ends alone, and the other requests never notice.

Changes: where a step fails, each of its requests has a step of its own. The one that fails again ends with the error; one
that counted on blocks the failed request was to fill is computed anew. A step that is interrupted counts for nothing.
Attaches to: `ModelRunner.run`, `EngineCore.execute` and `step`.
"""

import warnings

import torch

from phase4_scheduler.assembly import Feature
from phase4_scheduler.engine.core import (
    EngineCore,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineDeadError,
    output_of,
)
from phase4_scheduler.engine.model_runner import ModelRunner, Sampled
from phase4_scheduler.engine.request import Request, RequestStatus
from phase4_scheduler.engine.scheduler import Scheduler, SchedulerOutput


class FaultIsolatingRunner(ModelRunner):
    """
    Attributes:
        faults: of the last step, requests that cannot go on, and why.
        to_restart: of the last step, requests that count on blocks which a failed one left unfilled.
    """

    def run(self, output: SchedulerOutput) -> list[Sampled]:
        self.faults: list[tuple[Request, str]] = []
        self.to_restart: list[Request] = []
        try:
            return super().run(output)
        except EngineDeadError:
            raise
        except Exception as error:
            warnings.warn(
                f"a step of {len(output.scheduled)} requests failed ({reason(error)}); each is computed alone",
                stacklevel=3,
            )
        # Out here, where the error no longer holds on to the memory of the failed step.
        return self._run_one_by_one(output)

    def _run_one_by_one(self, output: SchedulerOutput) -> list[Sampled]:
        results: list[Sampled] = []
        unfilled: set[int] = set()  # blocks that a failed request was to fill
        for s in output.scheduled:
            request, blocks = s.request, s.block_ids
            new = blocks[s.num_computed // self.kv_cache.block_size :]
            results.append(Sampled())
            # Now or after its restart, the request draws the number that it would have drawn.
            rewind_generator(request)
            if not unfilled.isdisjoint(blocks):
                unfilled.update(new)
                self.to_restart.append(request)
                continue
            try:
                results[-1] = super().run(SchedulerOutput(scheduled=[s]))[0]
            except EngineDeadError:
                raise
            except Exception as error:
                unfilled.update(new)
                self.faults.append((request, reason(error)))
        return results


class FaultIsolatingCore(EngineCore):
    def execute(self, output: SchedulerOutput) -> list[Sampled]:
        try:
            results = super().execute(output)
        except BaseException:  # the model cannot go on at all: nothing of this step counts
            with self.deciding:
                for s in reversed(output.scheduled):
                    restart(self.scheduler, s.request)
                    rewind_generator(s.request)
                for request in output.preempted:  # its blocks may not have reached the swap space
                    self.block_manager.free(request.block_table)
                    request.num_computed_tokens = 0
            raise
        with self.deciding:
            for request in self.runner.to_restart:
                restart(self.scheduler, request)
            for request, message in self.runner.faults:
                # Its blocks may not hold what their hashes say: no prefix may hit them.
                self.block_manager.uncache(request.block_table)
                self.finish(request.request_id, "error")
                self._failed.append(output_of(request, [], [], message))
        return results

    def step(self) -> EngineCoreOutputs:
        self._failed: list[EngineCoreOutput] = []
        step = super().step()
        step.outputs += self._failed
        return step


class FaultIsolation(Feature):
    runner, core = FaultIsolatingRunner, FaultIsolatingCore


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def rewind_generator(request: Request) -> None:
    """Set a request's generator to its state after the tokens it has: each has taken one random number."""
    if request.generator is not None:
        request.generator = request.params.make_generator()
        torch.rand(len(request.output_token_ids), dtype=torch.float64, generator=request.generator)


def restart(scheduler: Scheduler, request: Request) -> None:
    """Send a running request back to the head of the queue, to be computed from its first token on.

    For a step that came to nothing: what its blocks hold is not to be trusted, so no prefix may hit them.
    """
    if request.status is RequestStatus.RUNNING:
        scheduler.running.remove(request)
        scheduler.block_manager.uncache(request.block_table)
        scheduler.block_manager.free(request.block_table)
        request.num_computed_tokens = 0
        scheduler.preempt(request)
