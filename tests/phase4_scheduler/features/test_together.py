"""Features together: requests come, grow, stop, are aborted, fail and make room, with every pair of features that works.

A shadow memory remembers what was really computed, so that no request is ever given a block that holds something else.
"""

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.sharing import SwappingBlockManager, WindowedBlockManager
from phase4_scheduler.engine import Request, RequestStatus, Scheduler, SchedulerConfig
from phase4_scheduler.features.faults import restart
from phase4_scheduler.features.speculation import SpeculativeConfig, SpeculativeScheduler
from phase4_scheduler.features.speculation.proposers import Drafts
from phase4_scheduler.features.swap import SwappingScheduler

STOP = 7


def compose(base, mixins, *args, **kwargs):
    return type(base.__name__, (*mixins, base), {})(*args, **kwargs)


def make(num_blocks=10, block_size=4, caching=True, swap=0, speculation=None, window=None, **config):
    """A scheduler with the features that are asked for."""
    config = SchedulerConfig(**config)
    managers, manager_args, schedulers, scheduler_args = [], {}, [], {}
    if swap:
        managers.append(SwappingBlockManager)
        manager_args["num_swap_blocks"] = swap
        schedulers.append(SwappingScheduler)
    if window:
        managers.append(WindowedBlockManager)
        manager_args |= {"sliding_window": window, "max_new_tokens": config.max_num_batched_tokens}
    if speculation:
        schedulers.append(SpeculativeScheduler)
        scheduler_args["speculative_config"] = speculation
    manager = compose(BlockManager, managers, num_blocks, block_size, caching, **manager_args)
    return compose(Scheduler, schedulers, config, manager, **scheduler_args)


def request(name, prompt, max_tokens=5, **fields):
    params = SamplingParams(max_tokens=max_tokens, stop_token_ids=[STOP])
    return Request(name, prompt, params, **fields)


def drafts_of(s):
    return s.drafts.token_ids if hasattr(s, "drafts") else []


def assert_free(scheduler):
    manager = scheduler.block_manager
    manager.check_integrity()
    assert manager.num_free_blocks == manager.num_blocks - 1
    assert not scheduler.running and not len(scheduler.waiting)
    assert not getattr(manager, "swapped", None)
    assert not getattr(scheduler, "drafts", None)


class Life(RuleBasedStateMachine):
    """See the top of this file."""

    @initialize(
        blocks=st.integers(6, 24),
        block_size=st.sampled_from([1, 2, 4, 5]),
        caching=st.booleans(),
        swap=st.sampled_from([0, 0, 3, 20]),
        policy=st.sampled_from(["fcfs", "priority"]),
        seats=st.integers(1, 6),
        budget=st.integers(1, 30),
        threshold=st.sampled_from([0, 0, 3]),
        chunked=st.sampled_from([True, True, False]),
        most_drafts=st.sampled_from([0, 0, 1, 3]),
        draft_model=st.booleans(),
        window=st.one_of(st.none(), st.integers(2, 12)),
    )
    def start(
        self, blocks, block_size, caching, swap, policy, seats, budget, threshold, chunked, most_drafts, draft_model, window
    ):  # fmt: skip
        self.window = None if most_drafts and draft_model else window  # as the engine does
        speculation = None
        if most_drafts:
            method = {"model": "tales-draft"} if draft_model else {"method": "ngram"}
            speculation = SpeculativeConfig(most_drafts, **method)
            budget += most_drafts + 1
        self.most_drafts, self.slots = most_drafts, int(most_drafts > 0 and draft_model)
        self.scheduler = make(
            blocks, block_size, caching, swap, speculation, self.window,
            max_num_seqs=seats, max_num_batched_tokens=budget, max_model_len=40, chunked_prefill=chunked,
            long_prefill_token_threshold=threshold, policy=policy,
        )  # fmt: skip
        self.manager = self.scheduler.block_manager
        self.rng = random.Random(0)
        self.alive, self.number = {}, 0
        self.memory = {}  # (block, place in it) -> all tokens up to and including the one stored there
        self.swapped = {}  # (swap slot, place in it) -> the same

    @rule(
        length=st.integers(1, 30),
        shared=st.integers(0, 20),
        max_tokens=st.integers(1, 12),
        priority=st.integers(0, 2),
    )
    def add(self, length, shared, max_tokens, priority):
        self.number += 1
        prompt = [10 + i if i < shared else 1000 + self.number for i in range(length)]
        item = request(
            str(self.number), prompt, max_tokens, arrival_time=float(self.number), priority=priority
        )
        config, manager = self.scheduler.config, self.manager
        stored = length + max_tokens - 1
        drafted = self.most_drafts * (1 + self.slots)
        held = -(-min(stored + drafted, 39 + self.slots) // manager.block_size)
        if (
            self.window
        ):  # what a step computes, what its first token sees, and what else is in that one's block
            seen = self.window - 1 + config.max_num_batched_tokens
            held = min(held, -(-seen // manager.block_size) + 1)
        fits = (
            length < 40
            and held < manager.num_blocks
            and (config.chunked_prefill or min(stored, 39) <= config.max_num_batched_tokens - self.slots)
        )
        try:
            self.scheduler.add(item)
        except ValueError:
            assert not fits
        else:
            assert fits
            self.alive[item.request_id] = item

    @rule(
        steps=st.integers(1, 6), stop=st.integers(0, 9), fault=st.sampled_from([None] * 8 + ["back", "error"])
    )
    def steps(self, steps, stop, fault):
        for i in range(steps):
            self.one_step(stop == i, fault if i == 0 else None)

    @rule(choice=st.integers(0, 99))
    def abort(self, choice):
        if self.alive:
            item = sorted(self.alive.values(), key=lambda r: r.request_id)[choice % len(self.alive)]
            self.scheduler.finish(item, "abort")
            self.scheduler.finish(item, "abort")  # twice is as good as once
            del self.alive[item.request_id]

    def one_step(self, stop=False, fault=None):
        scheduler, config, size = self.scheduler, self.scheduler.config, self.manager.block_size
        output = scheduler.schedule()
        num_tokens = sum(s.num_tokens for s in output.scheduled)
        assert num_tokens + self.slots * len(output.scheduled) <= config.max_num_batched_tokens
        assert len({id(s.request) for s in output.scheduled}) == len(output.scheduled)
        assert not {id(r) for r in output.preempted} & {id(s.request) for s in output.scheduled}
        for kind, source, target in getattr(self.manager, "take_copies", list)():
            old, new = {
                "copy": (self.memory, self.memory), "out": (self.memory, self.swapped), "in": (self.swapped, self.memory)
            }[kind]  # fmt: skip
            for place in range(size):
                new[target, place] = old.get((source, place))
        if fault == "back" and output.scheduled:  # as after Ctrl-C: nothing was computed
            for s in reversed(output.scheduled):
                restart(scheduler, s.request)
            for r in output.preempted:
                self.manager.free(r.block_table)
                r.num_computed_tokens = 0
            return
        for s in output.scheduled:  # all is written before anything is read
            token_ids = s.request.token_ids + drafts_of(s)
            ahead = self.most_drafts * self.slots  # a draft model's own room
            needed = min(s.num_computed + s.num_tokens + ahead, 40)
            assert len(s.request.block_table.block_ids) * size >= needed
            for t in range(s.num_computed, s.num_computed + s.num_tokens):
                slot = s.request.block_table.block_ids[t // size], t % size
                self.memory[slot] = tuple(token_ids[: t + 1])
        for s in output.scheduled:
            first = max(0, s.num_computed - self.window + 1) if self.window else 0
            held = [block_id != 0 for block_id in s.request.block_table.block_ids]
            assert held == [i >= first // size for i in range(len(held))], (
                "blocks go when they have left the window"
            )
            for t in range(first, s.num_computed + s.num_tokens - len(drafts_of(s))):
                slot = s.request.block_table.block_ids[t // size], t % size
                assert self.memory.get(slot) == tuple(s.request.token_ids[: t + 1]), (s.request, t)
        if fault == "error" and output.scheduled:
            victim = output.scheduled[-1].request
            self.manager.uncache(victim.block_table)
            scheduler.finish(victim, "error")
        tokens = []
        for i, s in enumerate(output.scheduled):
            token = STOP if stop and i % 2 == 0 else 2000 + i
            # Accepted drafts, and one token more. Padding is never accepted.
            drafts = drafts_of(s)
            accepted = self.rng.randint(0, len(drafts)) if drafts and drafts[0] >= 0 else 0
            tokens.append([*drafts[:accepted], token] if s.samples else [])
        before = {s.request.request_id: list(s.request.token_ids) for s in output.scheduled}
        finished = scheduler.update(output, tokens)
        for s, new in zip(output.scheduled, tokens, strict=True):
            grown = [] if s.request.finish_reason == "error" else new
            if s.request.finished:  # what came behind its end does not count
                grown = grown[: len(s.request.token_ids) - len(before[s.request.request_id])]
            else:
                assert not new or s.request.num_computed_tokens == s.request.num_tokens - 1
            assert s.request.token_ids == before[s.request.request_id] + grown
            count = self.rng.randint(0, self.most_drafts) if new and not s.request.finished else 0
            if count:
                scheduler.drafts[s.request] = Drafts([3000 + self.rng.randrange(9) for _ in range(count)])
        for item in finished:
            assert item.finish_reason in ("stop", "length")
            assert len(item.output_token_ids) <= item.max_tokens
        self.alive = {k: r for k, r in self.alive.items() if not r.finished}

    @invariant()
    def books(self):
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        self.manager.check_integrity()
        running, waiting = scheduler.running, list(scheduler.waiting)
        assert len({id(r) for r in running + waiting}) == len(running) + len(waiting)
        assert {r.request_id for r in running + waiting} == set(self.alive)
        assert len(running) <= scheduler.config.max_num_seqs
        for r in running:
            assert r.status is RequestStatus.RUNNING and r.num_computed_tokens <= r.num_tokens
            held, ahead = len(r.block_table.blocks), self.most_drafts * (1 + self.slots)
            assert held >= self.manager.blocks_for(r.num_computed_tokens)
            assert held <= self.manager.blocks_for(r.num_computed_tokens + ahead)
        for r in waiting:
            assert r.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
            assert not r.block_table.blocks
            assert r.num_computed_tokens == 0 or r.block_table in self.manager.swapped

    def teardown(self):
        """No more requests come: all must get to their end, and leave nothing behind."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(3000):
            if not self.scheduler.has_requests:
                break
            self.one_step()
            self.books()
        assert not self.alive, "a request starves"
        assert_free(self.scheduler)


Life.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLife = Life.TestCase


def test_swapped_out_and_in_nothing_is_computed_twice():
    scheduler = make(num_blocks=6, swap=6, max_model_len=21)
    manager = scheduler.block_manager
    first, second = request("1", [9] * 8, 7), request("2", [5] * 8, 12, arrival_time=2)
    scheduler.add(first)
    scheduler.add(second)
    while not second.num_preemptions:
        output = scheduler.schedule()
        scheduler.update(output, [[1000] if s.samples else [] for s in output.scheduled])
    out = manager.take_copies()
    assert [c.kind for c in out] == ["out"] * len(manager.swapped[second.block_table])
    computed = second.num_computed_tokens
    assert computed >= 8
    while second.status is not RequestStatus.RUNNING:
        output = scheduler.schedule()
        scheduler.update(output, [[1000] if s.samples else [] for s in output.scheduled])
    came_back = next(s for s in output.scheduled if s.request is second)
    assert (came_back.num_computed, came_back.num_tokens) == (computed, 1)
    assert {"in"} == {c.kind for c in manager.take_copies()}
    while scheduler.has_requests:
        output = scheduler.schedule()
        scheduler.update(output, [[1000] if s.samples else [] for s in output.scheduled])
    assert_free(scheduler)
