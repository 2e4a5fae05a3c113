"""Many steps in one go, where nothing happens but decoding.

Most steps of a server look alike: every running request gets one token more, nobody comes, ends, or lacks a block. The
scheduler would decide the same again and again. So count how many such steps lie ahead, let only the clock run for
them, and bring the books up to date afterwards. The schedule is the same to the last block (a test holds it to that).
"""

from collections.abc import Callable

from phase4_scheduler.engine import Request, Scheduler


def quiet_steps(scheduler: Scheduler) -> int:
    """How many steps from now on are decoding for sure, unless somebody comes. 0: the next one must be decided."""
    running, waiting, config = scheduler.running, scheduler.waiting, scheduler.config
    if not running or len(running) > config.max_num_batched_tokens or scheduler.num_speculative_tokens:
        return 0
    if len(waiting) and scheduler.num_running_seqs + waiting.head().num_seqs <= config.max_num_seqs:
        return 0  # there is a place for the first of the queue: perhaps it fits now
    if any(len(r.token_ids) - r.num_computed_tokens != 1 for r in running):
        return 0  # a prompt is not through
    until_one_ends = min(r.max_tokens - len(r.output_token_ids) for r in running) - 1
    manager = scheduler.block_manager
    until_blocks_may_run_out = manager.num_free_blocks // len(running) * manager.block_size
    return min(until_one_ends, until_blocks_may_run_out)


def decode_quietly(scheduler: Scheduler, steps: int, token: int, tick: Callable[[], bool]) -> None:
    """Let every running request get `token` up to `steps` times.

    Args:
        tick: called in each step, when its blocks are given out; False if it must be the last.
    """
    running, manager = scheduler.running, scheduler.block_manager
    size = manager.block_size
    # A request takes a block when its last one is full: all with the same remainder in the same step.
    takers: list[list[Request]] = [[] for _ in range(size)]
    for request in running:
        takers[-request.num_computed_tokens % size].append(request)
        request.token_ids += [token] * steps
    done, more = 0, True
    while done < steps and more:
        for request in takers[done % size]:
            manager.allocate(request.block_table, request.token_ids, request.num_computed_tokens + done + 1)
        more = tick()
        done += 1
    for request in running:
        request.num_computed_tokens += done
        if done < steps:
            del request.token_ids[done - steps :]
        request.output_token_ids += [token] * done
        request.block_table.num_tokens = request.num_computed_tokens
        if request.num_computed_tokens % size == 0:  # its last block is full by now: others may find it
            manager.allocate(request.block_table, request.token_ids, request.num_computed_tokens)
