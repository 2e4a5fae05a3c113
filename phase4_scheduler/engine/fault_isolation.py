"""What happens when a step fails: find out which requests are to blame, so that all others never notice.

Nothing here is called while steps go well. What went wrong goes into the step's result as data (`faults`,
`to_restart`), and the engine ends or restarts those requests.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from phase2_attention_kvcache.model.sampling import BadLogitsError
from phase4_scheduler.engine.output_processor import RequestState, StepResult
from phase4_scheduler.engine.scheduler import Scheduled, Scheduler, SchedulerOutput


def execute_one_by_one(
    execute: Callable[[Sequence[Scheduled]], Tensor], output: SchedulerOutput, block_size: int
) -> StepResult:
    """A step failed, and the error does not say because of whom. So each request has a step alone.

    Args:
        execute: computes the tokens of some requests, as `ModelRunner.execute`.
    """
    step, pieces = StepResult(output, torch.empty(0), {}), []
    unfilled: set[int] = set()  # blocks that a failed request was to fill
    for s in output.scheduled:
        blocks = s.request.block_table.block_ids
        if not unfilled.isdisjoint(blocks):  # it hit a block that was never filled
            unfilled.update(blocks[s.num_computed // block_size :])
            step.to_restart.append(s.request)
            continue
        try:
            # A copy: a runner may use the same memory for its next result.
            hidden = execute([s]).clone()
        except Exception as error:
            unfilled.update(blocks[s.num_computed // block_size :])
            step.faults.append((s.request, f"{type(error).__name__}: {error}"))
            continue
        step.first_row[s.request.request_id] = sum(map(len, pieces))
        pieces.append(hidden)
    if pieces:
        step.hidden = torch.cat(pieces)
    return step


def logits_one_by_one(
    logits_of: Callable[[Tensor, Sequence[int]], Tensor],
    step: StepResult,
    rows: list[int],
    ready: list[RequestState],
) -> tuple[Tensor | None, list[RequestState]]:
    """Logits of each request alone. Returns those that could be computed, and whose they are.

    Args:
        logits_of: hidden states and rows to logits, as `ModelRunner.logits`.
    """
    pieces, still_ready = [], []
    for row, state in zip(rows, ready, strict=True):
        try:
            pieces.append(logits_of(step.hidden, [row]))
            still_ready.append(state)
        except Exception as error:
            step.faults.append((state.request, f"{type(error).__name__}: {error}"))
    return (torch.cat(pieces) if pieces else None), still_ready


def drop_rows(
    step: StepResult, logits: Tensor, ready: list[RequestState], error: BadLogitsError
) -> tuple[Tensor, list[RequestState]]:
    """Logits, and the states they belong to, without the rows that nothing can be drawn from."""
    step.faults += [(ready[row].request, str(error)) for row in error.rows]
    keep = [row for row in range(len(ready)) if row not in error.rows]
    return logits[keep], [ready[row] for row in keep]


def restart_step(output: SchedulerOutput, scheduler: Scheduler, states: dict[str, RequestState]) -> None:
    """Nothing of this step counts: all its requests go back to the queue."""
    for s in reversed(output.scheduled):
        scheduler.restart(s.request)
        if state := states.get(s.request.request_id):
            # It may have drawn a random number already. So its generator starts again, and passes over those that
            # were drawn for the tokens it has.
            state.generator = state.parent.params.make_generator(state.index)
            if state.generator is not None:
                drawn = len(s.request.output_token_ids)
                torch.rand(drawn, dtype=torch.float64, generator=state.generator)
    for request in output.preempted:  # its blocks may not have reached the swap space
        scheduler.block_manager.free(request.block_table)
        request.num_computed_tokens = 0
