"""The scheduler without a model: nothing may leak whatever comes, and the corner cases that real engines got wrong."""

import json
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler import scheduler_lab
from phase4_scheduler.engine.queues import FcfsQueue, PriorityQueue
from phase4_scheduler.engine.request import Request, RequestStatus
from phase4_scheduler.engine.scheduler import Scheduler, SchedulerConfig
from phase4_scheduler.engine.speculative_config import SpeculativeConfig

STOP = 7


def make(num_blocks=10, block_size=4, caching=True, swap=0, **config):
    manager = BlockManager(num_blocks, block_size, caching, swap)
    return Scheduler(SchedulerConfig(**config), manager)


def request(name, prompt, max_tokens=5, **fields):
    wanted = {name: fields.pop(name) for name in ("n", "prompt_logprobs") if name in fields}
    params = SamplingParams(max_tokens=max_tokens, stop_token_ids=[STOP], **wanted)
    prompt = [100 + i for i in range(prompt)] if isinstance(prompt, int) else prompt
    return Request(name, prompt, params, **fields)


def step(scheduler, token=None):
    """One step; every request that is all computed gets `token` (or a different one for each place)."""
    output = scheduler.schedule()
    tokens = [(token or 1000 + len(s.request.token_ids)) if s.samples else None for s in output.scheduled]
    finished = scheduler.update(output, tokens)
    scheduler.block_manager.check_integrity()
    return output, finished


def run(scheduler, most=500):
    for _ in range(most):
        if not scheduler.has_requests:
            return
        step(scheduler)
    pytest.fail(f"still not done after {most} steps: {list(scheduler.waiting)} {scheduler.running}")


def counts(output):
    return {s.request.request_id: s.num_tokens for s in output.scheduled}


def assert_free(scheduler):
    manager = scheduler.block_manager
    manager.check_integrity()
    assert manager.num_free_blocks == manager.num_blocks - 1 and scheduler.num_running_seqs == 0
    assert not scheduler.running and not len(scheduler.waiting)
    assert len(manager.free_swap_blocks) == manager.num_swap_blocks


# ---------------------------------------------------------------------- whatever comes


class Life(RuleBasedStateMachine):
    """Requests come, grow, fork, stop, are aborted, fail and make room; and a shadow memory remembers what was
    really computed, so that nobody is ever given a block that holds something else."""

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
        self.manager = BlockManager(blocks, block_size, caching, swap, self.window)
        speculation = None
        if most_drafts:
            method = {"model": "tales-draft"} if draft_model else {"method": "ngram"}
            speculation = SpeculativeConfig(most_drafts, **method)
            budget += most_drafts + 1
        self.most_drafts, self.slots = most_drafts, int(most_drafts > 0 and draft_model)
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=seats, max_num_batched_tokens=budget, max_model_len=40, chunked_prefill=chunked,
                long_prefill_token_threshold=threshold, policy=policy,
                preemption="swap" if swap else "recompute", speculative_config=speculation,
            ),
            self.manager,
        )  # fmt: skip
        self.rng = random.Random(0)
        self.alive, self.number = {}, 0
        self.memory = {}  # (block, place in it) -> all tokens up to and including the one stored there
        self.swapped = {}  # (swap slot, place in it) -> the same

    @rule(
        length=st.integers(1, 30),
        shared=st.integers(0, 20),
        max_tokens=st.integers(1, 12),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        priority=st.integers(0, 2),
    )
    def add(self, length, shared, max_tokens, n, priority):
        self.number += 1
        prompt = [10 + i if i < shared else 1000 + self.number for i in range(length)]
        item = request(
            str(self.number), prompt, max_tokens, n=n, arrival_time=float(self.number), priority=priority
        )
        config, manager = self.scheduler.config, self.manager
        stored = length + max_tokens - 1
        drafted = self.most_drafts * (1 + self.slots)
        held = -(-min(stored + drafted, 39 + self.slots) // manager.block_size)
        if (
            self.window
        ):  # what a step computes, what its first token sees, and what else is in that one's block
            seen = self.window - 1 + config.max_num_batched_tokens - self.slots
            held = min(held, -(-seen // manager.block_size) + 1)
        fits = (
            length < 40
            and n <= config.max_num_seqs
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
        assert output.num_batched_tokens == sum(s.num_tokens for s in output.scheduled)
        assert output.num_batched_tokens + self.slots * len(output.scheduled) <= config.max_num_batched_tokens
        assert len({id(s.request) for s in output.scheduled}) == len(output.scheduled)
        assert not {id(r) for r in output.preempted} & {id(s.request) for s in output.scheduled}
        for kind, source, target in output.copies:
            old, new = {
                "copy": (self.memory, self.memory), "out": (self.memory, self.swapped), "in": (self.swapped, self.memory)
            }[kind]  # fmt: skip
            for place in range(size):
                new[target, place] = old.get((source, place))
        if fault == "back" and output.scheduled:  # as after Ctrl-C: nothing was computed
            for s in reversed(output.scheduled):
                scheduler.restart(s.request)
            for r in output.preempted:
                self.manager.free(r.block_table)
                r.num_computed_tokens = 0
            return
        for s in output.scheduled:  # all is written before anything is read
            token_ids = s.request.token_ids + list(s.drafts)
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
            for t in range(first, s.num_computed + s.num_tokens - len(s.drafts)):
                slot = s.request.block_table.block_ids[t // size], t % size
                assert self.memory.get(slot) == tuple(s.request.token_ids[: t + 1]), (s.request, t)
        if fault == "error" and output.scheduled:
            victim = output.scheduled[-1].request
            self.manager.uncache(victim.block_table)
            scheduler.finish(victim, "error")
        for s in list(output.scheduled):
            parent = s.request
            while s.samples and parent.num_seqs > 1 and not parent.finished:
                self.number += 1
                child = Request(
                    f"{parent.request_id}#{self.number}", parent.prompt_token_ids, parent.params,
                    parent.arrival_time, parent.priority,
                )  # fmt: skip
                scheduler.fork(output, parent, child)
                self.alive[child.request_id] = child
        tokens = []
        for i, s in enumerate(output.scheduled):
            token = STOP if stop and i % 2 == 0 else 2000 + i
            # Drafts that stand, and one token more. Padding never stands.
            stand = self.rng.randint(0, len(s.drafts)) if s.drafts and s.drafts[0] >= 0 else 0
            tokens.append([*s.drafts[:stand], token] if s.samples else None)
        before = {s.request.request_id: list(s.request.token_ids) for s in output.scheduled}
        finished = scheduler.update(output, tokens)
        for s, new in zip(output.scheduled, tokens, strict=True):
            grown = [] if new is None or s.request.finish_reason == "error" else new
            if s.request.finished:  # what came behind its end does not count
                grown = grown[: len(s.request.token_ids) - len(before[s.request.request_id])]
            else:
                assert new is None or s.request.num_computed_tokens == s.request.num_tokens - 1
            assert s.request.token_ids == before[s.request.request_id] + grown
            if new is not None and self.most_drafts:
                count = self.rng.randint(0, self.most_drafts)
                s.request.spec_token_ids = [3000 + self.rng.randrange(9) for _ in range(count)]
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
        assert sum(r.num_seqs for r in running) == scheduler.num_running_seqs <= scheduler.config.max_num_seqs
        for r in running:
            assert r.status is RequestStatus.RUNNING and r.num_computed_tokens <= r.num_tokens
            held, ahead = len(r.block_table.blocks), self.most_drafts * (1 + self.slots)
            assert held >= self.manager.blocks_for(r.num_computed_tokens)
            assert held <= self.manager.blocks_for(r.num_computed_tokens + ahead)
        for r in waiting:
            assert r.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
            assert not r.block_table.blocks
            assert r.num_computed_tokens == 0 or r.block_table.swap_blocks

    def teardown(self):
        """Nobody new comes: now everybody must get to the end, and leave nothing behind."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(3000):
            if not self.scheduler.has_requests:
                break
            self.one_step()
            self.books()
        assert not self.alive, "somebody starves"
        assert_free(self.scheduler)


Life.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLife = Life.TestCase


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("swap", [0, 10])
def test_nobody_starves_while_others_keep_coming(policy, swap):
    """First come, first served: no request waits for one that came 20 places later."""
    rng = random.Random(1)
    scheduler = make(
        num_blocks=14, swap=swap, max_num_seqs=4, max_num_batched_tokens=16, policy=policy,
        preemption="swap" if swap else "recompute",
    )  # fmt: skip
    items = []
    for i in range(150):
        items.append(request(str(i), rng.randint(1, 20), rng.randint(1, 20), arrival_time=i))
        scheduler.add(items[-1])
        for _ in range(rng.randint(1, 8)):
            step(scheduler)
        late = [r for r in items[:-60] if not r.finished]
        assert policy == "priority" or not late or len(scheduler.waiting) > 40
    run(scheduler, 5000)
    assert scheduler.num_preemptions > 10
    assert all(r.finish_reason == "length" and len(r.output_token_ids) == r.max_tokens for r in items)
    assert_free(scheduler)


# ---------------------------------------------------------------------- drafts


def test_a_fork_shares_no_room_for_guesses():
    """Both sequences write there, each its own. A prompt of 4 tokens, and room for 3 guesses, in blocks of 1."""
    scheduler = make(
        block_size=1, num_blocks=20, speculative_config=SpeculativeConfig(3, model="tales-draft")
    )
    parent = request("a", 4, n=2)
    scheduler.add(parent)
    output = scheduler.schedule()
    child = parent.sibling("b", 1)
    scheduler.fork(output, parent, child)
    assert len(parent.block_table.block_ids) == 7
    assert child.block_table.block_ids == parent.block_table.block_ids[:4]
    scheduler.update(output, [50, 51])
    output = scheduler.schedule()
    assert counts(output) == {"a": 1, "b": 1}
    assert not set(parent.block_table.block_ids[4:]) & set(child.block_table.block_ids[4:])
    scheduler.update(output, [52, 53])
    run(scheduler)
    assert_free(scheduler)


def test_a_swapped_request_returns_only_where_its_drafts_fit_too():
    """Room for its tokens alone is not enough: it would hold blocks, and still stand in the queue."""
    scheduler = make(
        num_blocks=5, block_size=3, swap=40, max_model_len=40, preemption="swap",
        speculative_config=SpeculativeConfig(1, model="tales-draft"),
    )  # fmt: skip
    for name in ("a", "b", "c"):
        scheduler.add(request(name, 2, max_tokens=6))
    while scheduler.has_requests:
        step(scheduler)
        assert all(not r.block_table.blocks for r in scheduler.waiting)
    assert scheduler.num_preemptions > 0
    assert_free(scheduler)


# ---------------------------------------------------------------------- prefix hits


@pytest.mark.parametrize(("prompt_logprobs", "computed"), [(None, 4), (0, 8)])
def test_a_prompt_that_is_cached_entirely_computes_its_last_block_again(prompt_logprobs, computed):
    scheduler = make()
    scheduler.add(request("a", 8, 1))
    run(scheduler)
    scheduler.add(request("b", 8, 1, prompt_logprobs=prompt_logprobs))
    output, _ = step(scheduler)
    assert counts(output) == {"b": computed}  # not 0, and not 1: blocks are hit whole
    assert output.scheduled[0].num_computed == output.scheduled[0].request.num_cached_tokens == 8 - computed
    assert_free(scheduler)


# ---------------------------------------------------------------------- preemption


def two_that_do_not_fit(**config):
    """Both are admitted; when both have written, there is a block too few."""
    scheduler = make(num_blocks=6, max_model_len=21, **config)
    first, second = request("1", 8, 7, arrival_time=1), request("2", [5] * 8, 12, arrival_time=2, priority=1)
    scheduler.add(first)
    scheduler.add(second)
    while not scheduler.num_preemptions:
        output, _ = step(scheduler)
    return scheduler, first, second, output


def test_the_last_to_come_makes_room_and_hits_its_own_blocks_later():
    scheduler, _first, second, output = two_that_do_not_fit()
    assert output.preempted == [second] and counts(output) == {"1": 1}
    assert second.status is RequestStatus.PREEMPTED and second.num_computed_tokens == 0
    assert list(scheduler.waiting) == [second]
    answer = list(second.output_token_ids)
    while second.status is not RequestStatus.RUNNING:
        output, _ = step(scheduler)
    came_back = next(s for s in output.scheduled if s.request is second)
    assert came_back.num_computed > 0  # something of it was still in the cache
    assert came_back.num_computed + came_back.num_tokens == 8 + len(answer)
    assert second.output_token_ids[: len(answer)] == answer
    assert second.num_cached_tokens == 0  # that counts the first admission only
    run(scheduler)
    assert len(second.output_token_ids) == 12
    assert_free(scheduler)


def test_swapped_out_and_in_nothing_is_computed_twice():
    scheduler, _, second, output = two_that_do_not_fit(swap=6, preemption="swap")
    assert [c.kind for c in output.copies] == ["out"] * len(second.block_table.swap_blocks)
    computed = second.num_computed_tokens
    assert computed >= 8
    while second.status is not RequestStatus.RUNNING:
        output, _ = step(scheduler)
    came_back = next(s for s in output.scheduled if s.request is second)
    assert (came_back.num_computed, came_back.num_tokens) == (computed, 1)
    assert {"in"} == {c.kind for c in output.copies}
    run(scheduler)
    assert_free(scheduler)


def test_a_victim_of_the_priority_policy_may_be_in_this_step_already():
    """Its tokens go back to the budget; and the block that it was to fill holds nothing, whatever its name says."""
    scheduler = make(num_blocks=6, max_model_len=20, max_num_batched_tokens=12, policy="priority")
    low = request("low", 12, 2, priority=5, arrival_time=1)
    high = request("high", [3] * 7, 9, priority=0, arrival_time=2)
    scheduler.add(low)
    scheduler.add(high)
    output = scheduler.schedule()
    assert counts(output) == {"high": 7, "low": 5}
    scheduler.update(output, [50, None])
    scheduler.running.reverse()  # low first: it gets blocks 2 and 3 of its prompt, then high asks for one
    high.append(51)
    output = scheduler.schedule()
    assert [r.request_id for r in output.preempted] == ["low"] and counts(output) == {"high": 2}
    assert output.num_batched_tokens == 2
    # 5 of its tokens were computed: one full block. Of the other two high took one.
    assert len(scheduler.block_manager.match_prefix(low.block_table, low.token_ids)) == 1
    scheduler.update(output, [52])
    run(scheduler)
    assert_free(scheduler)


def test_two_finish_in_the_step_in_which_a_third_is_preempted():
    scheduler = make(num_blocks=7, max_model_len=20)
    a, b = request("a", 8, 1 + 1), request("b", [5] * 8, 1 + 1)
    c = request("c", [6] * 8, 9)
    for item in (a, b, c):
        scheduler.add(item)
    step(scheduler)
    output = scheduler.schedule()
    assert [r.request_id for r in output.preempted] == ["c"]
    finished = scheduler.update(output, [1, 2])
    assert finished == [a, b]
    scheduler.block_manager.check_integrity()
    run(scheduler)
    assert len(c.output_token_ids) == 9
    assert_free(scheduler)


# ---------------------------------------------------------------------- limits


def test_oversized_requests_are_refused_on_arrival_and_leave_nothing():
    scheduler = make(num_blocks=5, max_model_len=30, max_num_seqs=2)
    for item, message in [
        (request("a", 30), "the prompt has 30 tokens, the context holds 30"),
        (request("b", 10, 8), "10 prompt tokens and an answer of 8 do not fit the KV cache of 16 tokens"),
        (request("c", 10, None), "10 prompt tokens and an answer of 20 do not fit"),
        (request("d", 1, n=3), "n is 3: at most max_num_seqs, 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            scheduler.add(item)
        assert_free(scheduler)
    scheduler.add(request("fits", 10, 7))  # 17 tokens, the last of which is never stored
    run(scheduler)
    assert_free(scheduler)


def test_without_chunks_a_prompt_waits_for_a_step_of_its_own():
    scheduler = make(num_blocks=30, chunked_prefill=False, max_num_batched_tokens=10, max_model_len=40)
    with pytest.raises(ValueError, match="12 tokens are over the budget of 10"):
        scheduler.add(request("no", 6, 6))
    for name, length in [("a", 6), ("b", [1] * 7), ("c", [2])]:
        scheduler.add(request(name, length, 2))
    assert counts(step(scheduler)[0]) == {"a": 6}  # b does not fit beside it, and c does not jump the queue
    assert counts(step(scheduler)[0]) == {"a": 1, "b": 7, "c": 1}
    run(scheduler)


def test_a_long_prompt_gets_what_the_others_leave():
    scheduler = make(num_blocks=40, max_num_batched_tokens=8, max_model_len=60)
    scheduler.add(request("short", 3, 9))
    step(scheduler)
    scheduler.add(request("long", [1] * 20, 2))
    assert [counts(step(scheduler)[0]) for _ in range(4)] == [
        {"short": 1, "long": 7}, {"short": 1, "long": 7}, {"short": 1, "long": 6}, {"short": 1, "long": 1},
    ]  # fmt: skip


def test_the_threshold_counts_only_in_company():
    scheduler = make(num_blocks=40, long_prefill_token_threshold=4, max_model_len=60)
    scheduler.add(request("a", 12, 3))
    assert counts(step(scheduler)[0]) == {"a": 12}
    scheduler.add(request("b", [1] * 12, 3))
    assert counts(step(scheduler)[0]) == {"a": 1, "b": 4}


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "max_model_len", "reason", "number"),
    [
        ([1, 1, 1, STOP], 9, 40, "stop", 4),  # the stop token is the one that fills a block (4 + 4 = 8)
        ([1, STOP], 2, 40, "stop", 2),  # at the last token that is allowed, a stop is a stop
        ([1, 1, 1], 3, 40, "length", 3),
        ([1, 1, 1, 1], 4, 8, "length", 4),  # max_tokens and max_model_len together
        ([1, 1, 1, 1], None, 8, "length", 4),
        ([1, 1, 1, STOP], 4, 8, "stop", 4),
    ],
)
def test_how_an_answer_ends(tokens, max_tokens, max_model_len, reason, number):
    scheduler = make(num_blocks=20, max_model_len=max_model_len)
    item = request("a", 4, max_tokens)
    scheduler.add(item)
    for token in tokens:
        assert not item.finished
        step(scheduler, token)
    assert (item.finish_reason, len(item.output_token_ids)) == (reason, number)
    assert item.stop_reason == (STOP if reason == "stop" else None)
    assert_free(scheduler)


def test_a_stop_token_counts_from_min_tokens_on():
    scheduler = make()
    params = SamplingParams(max_tokens=9, min_tokens=3, stop_token_ids=[STOP])
    scheduler.add(item := Request("a", [1], params))
    for expected in (False, False, True):
        step(scheduler, STOP)
        assert item.finished == expected
    assert item.output_token_ids == [STOP] * 3 and item.finish_reason == "stop"


def test_policies_choose_their_queue_and_order():
    assert type(make().waiting) is FcfsQueue and type(make(policy="priority").waiting) is PriorityQueue
    scheduler = make(policy="priority", max_num_seqs=1)
    for name, priority in [("a", 2), ("b", 0), ("c", 1)]:
        scheduler.add(request(name, [1], 1, priority=priority))
    assert [next(iter(counts(step(scheduler)[0]))) for _ in range(3)] == ["b", "c", "a"]


def test_an_empty_scheduler_decides_nothing():
    output = make().schedule()
    assert (output.scheduled, output.preempted, output.copies, output.num_batched_tokens) == ([], [], [], 0)


def test_a_request_needs_a_token_and_shows_itself():
    with pytest.raises(ValueError, match="the prompt is empty"):
        Request("a", [], SamplingParams())
    assert repr(request("a", 3)) == "Request('a', waiting, 0/3 computed)"


# ---------------------------------------------------------------------- the script


def test_the_story(tmp_path, capsys):
    assert scheduler_lab.main(["--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert {p["claim"] for p in report["predictions"]} >= {"shared-budget", "preempted", "urgent"}
    assert all(p["holds"] for p in report["predictions"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100
    with pytest.raises(SystemExit) as stop:
        scheduler_lab.main(["--model", "tales"])
    assert stop.value.code == 2 and "unrecognized arguments" in capsys.readouterr().err
