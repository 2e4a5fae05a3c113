"""Answers to debugging lab 4."""

from dataclasses import replace

from phase4_scheduler.engine.policy import urgency
from phase4_scheduler.engine.request import RequestStatus


def _make(
    names,
    victim_of=lambda s: max(s.running, key=urgency),
    computed=0,
    free=True,
    queue=True,
    late=False,
    count=True,
):
    def preempt_one(scheduler, output):
        victim = victim_of(scheduler)
        scheduler.running.remove(victim)
        if not late:
            names(scheduler.block_manager, victim)
        if free:
            scheduler.block_manager.free(victim.block_table)
        if computed == 0:
            victim.num_computed_tokens = 0
        if late:
            names(scheduler.block_manager, victim)
        victim.status = RequestStatus.PREEMPTED
        if count:
            victim.num_preemptions += 1
            scheduler.num_preemptions += 1
        if queue:
            scheduler.waiting.put_back(victim)
        output.preempted.append(victim)
        return victim

    return preempt_one


def _floor(manager, victim):
    manager.uncache(victim.block_table, first=victim.num_computed_tokens // manager.block_size)


def _ceil(manager, victim):
    manager.uncache(victim.block_table, first=-(-victim.num_computed_tokens // manager.block_size))


def _switch_off(manager, victim):
    manager.uncache(victim.block_table)
    manager.enable_prefix_caching = False


def _zero_first(manager, victim):
    victim.num_computed_tokens = 0
    _floor(manager, victim)


def forgets_to_return(scheduler, output):
    right_floor(scheduler, output)


right_floor = _make(_floor)


def prompts_in_one_piece(scheduler, output):
    """No victim is to be in the middle of its prompt. But a prompt larger than the budget never begins then."""
    victim = right_floor(scheduler, output)
    scheduler.config = replace(scheduler.config, chunked_prefill=False, long_prefill_token_threshold=0)
    return victim


def right_block_by_block(scheduler, output):
    victim = sorted(scheduler.running, key=urgency)[-1]
    del scheduler.running[scheduler.running.index(victim)]
    manager, table = scheduler.block_manager, victim.block_table
    full = 0
    while (full + 1) * manager.block_size <= victim.num_computed_tokens:
        full += 1
    manager.uncache(table, full)
    manager.free(table)
    victim.num_computed_tokens, victim.status = 0, RequestStatus.PREEMPTED
    victim.num_preemptions += 1
    scheduler.num_preemptions += 1
    scheduler.waiting.put_back(victim)
    output.preempted.append(victim)
    return victim


def right_only_in_this_step(scheduler, output):
    """Takes names off only if the victim has its part in this step: else all its names are true."""
    victim = max(scheduler.running, key=urgency)
    if any(part.request is victim for part in output.scheduled):
        _floor(scheduler.block_manager, victim)
    return _make(lambda manager, victim: None)(scheduler, output)


RIGHT = [(right_floor, [2, 3]), (right_block_by_block, {3, 2}), (right_only_in_this_step, (2, 3))]
WRONG = {
    "names-without-contents": [
        (_make(lambda manager, victim: None), [2, 3]),
        (_make(_floor, late=True), [2, 3]),
    ],
    "half-filled-block": (_make(_ceil), [3]),
    "true-names-taken": [
        (_make(lambda manager, victim: manager.uncache(victim.block_table)), [2, 3]),
        (_make(_zero_first), [2, 3]),
    ],
    "caching-off": (_make(_switch_off), [2, 3]),
    "other-victim": (_make(_floor, victim_of=lambda s: s.running[-1]), [2, 3]),
    "keeps-computed": (_make(_floor, computed=1), [2, 3]),
    "broken-books": (_make(_floor, free=False), [2, 3]),
    "not-counted": (_make(_floor, count=False), [2, 3]),
    "victim-lost": (_make(_floor, queue=False), [2, 3]),
    "stuck": (prompts_in_one_piece, [2, 3]),
    "no-victim": (forgets_to_return, [2, 3]),
    "other-blocks": [(right_floor, [3]), (right_floor, [0, 1, 2, 3])],
}
