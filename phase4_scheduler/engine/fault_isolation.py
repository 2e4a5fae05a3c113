"""What happens when a step fails: find out which requests are to blame, so that all others never notice.

Nothing here is called while steps go well. What went wrong comes back as data, and the core ends or restarts those
requests.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from phase2_attention_kvcache.model.sampling import SampledTokens
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import Scheduler
from phase4_scheduler.engine.scheduler_output import Scheduled, SchedulerOutput

Fault = tuple[Request, str]  # a request that cannot go on, and why
Sampled = tuple[list[int], list[dict[int, float] | None]]  # tokens; log probabilities if they were asked for


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def execute_one_by_one(
    execute: Callable[[Sequence[Scheduled]], Tensor], scheduled: Sequence[Scheduled], block_size: int
) -> tuple[Tensor, dict[str, int], list[Fault], list[Request]]:
    """A step failed, and the error does not say because of whom. So each request has a step alone.

    Args:
        execute: computes the tokens of some requests, as `ModelRunner.execute`.

    Returns:
        hidden [N, d_model] of those that could be computed; by request id, its first row there; the faults; and
        the requests that have to restart, since a faulty one left blocks unfilled.
    """
    pieces: list[Tensor] = []
    first_row: dict[str, int] = {}
    faults: list[Fault] = []
    to_restart: list[Request] = []
    unfilled: set[int] = set()  # blocks that a failed request was to fill
    for s in scheduled:
        blocks = s.request.block_table.block_ids
        if not unfilled.isdisjoint(blocks):  # it hit a block that was never filled
            unfilled.update(blocks[s.num_computed // block_size :])
            to_restart.append(s.request)
            continue
        try:
            # A copy: a runner may use the same memory for its next result.
            hidden = execute([s]).clone()
        except Exception as error:
            unfilled.update(blocks[s.num_computed // block_size :])
            faults.append((s.request, reason(error)))
            continue
        first_row[s.request.request_id] = sum(map(len, pieces))
        pieces.append(hidden)
    return torch.cat(pieces) if pieces else torch.empty(0), first_row, faults, to_restart


def sample_one_by_one(
    logits_of: Callable[[int], Tensor],
    sample: Callable[[Tensor, Sequence[Request]], SampledTokens],
    requests: Sequence[Request],
) -> tuple[dict[str, Sampled], list[Fault]]:
    """Sampling failed. So each request is sampled alone, and draws the number that it would have drawn.

    Args:
        logits_of: the logits [1, vocab] of request i.
        sample: picks a token for each row of logits, as `Sampler.sample`.

    Returns:
        by request id, its token and log probabilities; and the faults.
    """
    sampled: dict[str, Sampled] = {}
    faults: list[Fault] = []
    for i, request in enumerate(requests):
        request.rewind_generator()
        try:
            one = sample(logits_of(i), [request])
            sampled[request.request_id] = (one.token_ids, one.logprobs)
        except Exception as error:
            faults.append((request, reason(error)))
    return sampled, faults


def restart_step(output: SchedulerOutput, scheduler: Scheduler) -> None:
    """Nothing of this step counts: all its requests go back to the queue."""
    for s in reversed(output.scheduled):
        scheduler.restart(s.request)
        s.request.rewind_generator()  # it may have drawn a random number already
    for request in output.preempted:  # its blocks may not have reached the swap space
        scheduler.block_manager.free(request.block_table)
        request.num_computed_tokens = 0
