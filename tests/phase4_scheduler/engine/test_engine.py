"""The engine's tokens against transformers, whatever the scheduler does; and every field a request may set."""

import dataclasses
import json
import random
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from phase2_attention_kvcache.model.config import GPT2_124M
from phase2_attention_kvcache.model.sampling import Sampler
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.paging.paged_kv_cache import PagedKVCache
from phase4_scheduler.assembly.build import default_num_blocks
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.core import EngineCore
from phase4_scheduler.engine.scheduler import Scheduler, SchedulerConfig
from phase4_scheduler.features.recording import record

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=12, ignore_eos=True, seed=11)

# name -> settings of an engine; those after "roomy" force the scheduler into its corners.
SETTINGS = {
    "roomy": {},
    "block of 1": dict(block_size=1, num_blocks=120, max_num_batched_tokens=64),
    "block of 7": dict(block_size=7, num_blocks=19, max_num_batched_tokens=23),
    "block of 64": dict(block_size=64, num_blocks=5, max_num_batched_tokens=50),
    "budget of 5": dict(max_num_batched_tokens=5, block_size=4, num_blocks=30),
    "budget of 1": dict(max_num_batched_tokens=1, block_size=4, num_blocks=30),
    "threshold": dict(long_prefill_token_threshold=7, max_num_batched_tokens=30, block_size=4, num_blocks=40),
    "no chunks": dict(chunked_prefill=False, max_num_batched_tokens=60, block_size=4, num_blocks=40),
    "no prefix cache": dict(enable_prefix_caching=False, block_size=4, num_blocks=20),
    "tight": dict(block_size=4, num_blocks=15, max_num_batched_tokens=29),
    "tight, swap": dict(block_size=4, num_blocks=15, max_num_batched_tokens=29, preemption="swap", num_swap_blocks=30),
    "tight, little swap": dict(block_size=4, num_blocks=15, preemption="swap", num_swap_blocks=9),
    "priority": dict(policy="priority", block_size=4, num_blocks=15, max_num_batched_tokens=29),
    "priority, swap": dict(
        policy="priority", block_size=4, num_blocks=15, max_num_batched_tokens=29, preemption="swap", num_swap_blocks=30
    ),
    "priority, no prefix cache": dict(policy="priority", block_size=1, num_blocks=60, enable_prefix_caching=False),
    "3 sequences": dict(max_num_seqs=3, block_size=4, num_blocks=15),
}  # fmt: skip
CORNERS = ("tight", "priority", "block of 7", "no prefix cache")
PREEMPT = {name for name in SETTINGS if any(corner in name for corner in CORNERS)}


def tokens_of(outputs):
    return [o.token_ids for o in outputs]


def serve(engine, prompts, params, seed=0, per_step=4):
    """Requests that arrive during the run, with random priorities; every step's books are checked."""
    rng = random.Random(seed)
    left = list(enumerate(zip(prompts, params, strict=True)))
    got = {}
    while left or engine.has_unfinished_requests:
        for _ in range(min(len(left), rng.randint(0, per_step))):
            i, (prompt, p) = left.pop(0)
            engine.add_request(str(i), prompt, p, priority=rng.randint(0, 3), arrival_time=i)
        for out in engine.step():
            for c in out.outputs:
                got.setdefault(out.request_id, {}).setdefault(c.index, []).extend(c.token_ids)
                assert c.finish_reason != "error", out.error
        engine.core.block_manager.check_integrity()
    return [got[str(i)] for i in range(len(prompts))]


# ---------------------------------------------------------------------- tokens


@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_tokens_are_those_of_transformers(name, tiny, make_prompts):
    engine = tiny.engine(**SETTINGS[name])
    prompts = make_prompts(20, 400, seed=len(name))
    answers = [a[0] for a in serve(engine, prompts, [GREEDY] * 20)]
    assert all(len(a) == 12 for a in answers)
    tiny.assert_greedy(prompts, answers)
    assert engine.core.stats.num_preemptions > 0 or name not in PREEMPT


# ---------------------------------------------------------------------- n answers


@pytest.mark.parametrize("name", ["roomy", "block of 1", "tight", "tight, swap", "priority", "budget of 5"])
@pytest.mark.parametrize("max_tokens", [1, 9])
def test_n_answers_equal_n_requests_with_seeds_in_a_row(name, max_tokens, tiny, make_prompts):
    prompts = make_prompts(6, 400, lengths=(3, 18), seed=1)
    params = [dataclasses.replace(DRAWN, n=3, seed=100 * i, max_tokens=max_tokens) for i in range(6)]
    engine = tiny.engine(**SETTINGS[name])
    got = serve(engine, prompts, params, per_step=3)
    for prompt, p, answers in zip(prompts, params, got):
        single = [dataclasses.replace(p, n=1, seed=p.seed + i) for i in range(3)]
        assert [answers[i] for i in range(3)] == tokens_of(tiny.engine().generate([prompt] * 3, single))
    if max_tokens == 9 and ("tight" in name or name == "priority"):
        assert engine.core.stats.num_preemptions > 0


def test_n_answers_share_the_full_blocks_of_their_prompt(tiny):
    """Through the prefix cache, as any requests that begin alike."""
    engine = tiny.engine(block_size=4)
    engine.add_request("a", list(range(100, 118)), dataclasses.replace(DRAWN, n=4, max_tokens=3))
    assert list(engine.core.requests) == ["0_a", "1_a", "2_a", "3_a"]
    engine.step()
    manager = engine.core.block_manager
    # 4 full ones, and the last of each answer.
    assert manager.num_free_blocks == manager.num_blocks - 1 - 4 - 4 * 1
    while engine.has_unfinished_requests:
        engine.step()
    assert (engine.core.stats.prefix_queries, engine.core.stats.prefix_hits) == (4 * 18, 3 * 16)


def test_only_requests_with_the_same_salt_share_blocks(tiny):
    engine, prompt = tiny.engine(block_size=4), list(range(100, 118))
    salts = ["mine", "mine", None, "yours", None]
    outputs = [engine.generate([prompt], dataclasses.replace(GREEDY, cache_salt=salt))[0] for salt in salts]
    assert [out.metrics.num_cached_tokens for out in outputs] == [0, 16, 0, 0, 16]
    assert len({tuple(out.token_ids) for out in outputs}) == 1


# ---------------------------------------------------------------------- how answers end


def ends(tiny, prompt, n=30, **fields):
    engine = tiny.engine()
    params = SamplingParams(**{**dict(temperature=0.8, seed=4, max_tokens=n, ignore_eos=True), **fields})
    streamed = list(engine.stream(prompt, params))
    whole = tiny.engine().generate([prompt], params)[0]
    assert "".join(o.text for o in streamed) == whole.text
    assert [t for o in streamed for t in o.token_ids] == whole.token_ids
    assert streamed[-1].finished and streamed[-1].finish_reason == whole.finish_reason
    assert not any(o.finished for o in streamed[:-1])
    assert engine.core.block_manager.num_free_blocks == engine.core.block_manager.num_blocks - 1
    return whole


def test_a_stop_string_or_stop_token_ends_an_answer_where_it_comes(tiny):
    free = ends(tiny, "The king")
    middle, token = len(free.text) // 2, free.token_ids[7]
    for stop in (free.text[middle : middle + 2], free.text[middle : middle + 9]):
        out = ends(tiny, "The king", stop=[stop, "never to be seen"])
        assert (out.text, out.stop_reason) == (free.text[: free.text.index(stop)], stop)
    out, kept = (
        ends(tiny, "The king", stop_token_ids=[token], include_stop_str_in_output=keep)
        for keep in (False, True)
    )
    assert out.token_ids == kept.token_ids == free.token_ids[: free.token_ids.index(token) + 1]
    assert (out.finish_reason, out.stop_reason) == ("stop", token)
    assert out.text == tiny.tokenizer.decode(out.token_ids[:-1], skip_special_tokens=True)
    assert kept.text == tiny.tokenizer.decode(out.token_ids, skip_special_tokens=True)


def test_end_of_text_ends_an_answer_unless_ignored(tiny):
    eos = 399
    bias = dict(logit_bias={eos: 100}, temperature=0)
    out = ends(tiny, [5, 6], **bias, ignore_eos=False)
    assert (out.token_ids, out.text, out.finish_reason, out.stop_reason) == ([eos], "", "stop", None)
    assert len(ends(tiny, [5, 6], **bias, ignore_eos=False, min_tokens=4).token_ids) == 5
    assert ends(tiny, [5, 6], 1, **bias, ignore_eos=False).finish_reason == "stop"  # also at the last token
    ignored = ends(tiny, [5, 6], 4, **bias)
    assert (ignored.token_ids, ignored.text, ignored.finish_reason) == ([eos] * 4, "", "length")
    shown = ends(tiny, [5, 6], 2, **bias, skip_special_tokens=False)
    assert shown.text == "<|endoftext|>" * 2
    # As in vLLM an end of text needs no reason, unless it is ignored and counts as a stop token only.
    for ignore, reason in ((True, eos), (False, None)):
        asked = ends(tiny, [5, 6], 4, **bias, stop_token_ids=[eos], ignore_eos=ignore)
        assert (asked.token_ids, asked.stop_reason) == ([eos], reason)


@pytest.mark.parametrize(("length", "max_tokens"), [(30, None), (30, 200), (30, 98), (30, 99), (127, 5)])
def test_an_answer_ends_where_the_context_does(length, max_tokens, tiny):
    prompt = list(range(length))
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    out = tiny.engine().generate([prompt], params)[0]
    assert (len(out.token_ids), out.finish_reason) == (128 - length, "length")
    tiny.assert_greedy([prompt], [out.token_ids])


# ---------------------------------------------------------------------- what is reported


@pytest.mark.parametrize("name", ["roomy", "tight", "tight, swap", "budget of 5", "block of 1"])
def test_log_probabilities_are_those_of_transformers(name, tiny, make_prompts, monkeypatch):
    # Most prompts take several rounds.
    monkeypatch.setattr("phase4_scheduler.features.prompt_logprobs.ROWS_AT_ONCE", 3)
    prompts = make_prompts(10, 400, seed=8)
    params = [dataclasses.replace(DRAWN, logprobs=i % 3, prompt_logprobs=2, seed=i) for i in range(10)]
    engine = tiny.engine(**SETTINGS[name])
    # Fills the cache.
    engine.generate(prompts, [dataclasses.replace(p, prompt_logprobs=None) for p in params])
    outputs = engine.generate(prompts, params)
    sequences = [p + o.token_ids for p, o in zip(prompts, outputs)]
    for prompt, p, out, logits in zip(prompts, params, outputs, tiny.logits(sequences)):
        wanted = logits.log_softmax(-1)
        assert len(out.logprobs) == len(out.token_ids)
        for i, (token, entry) in enumerate(zip(out.token_ids, out.logprobs)):
            check_entry(entry, token, p.logprobs, wanted[len(prompt) - 1 + i])
        assert len(out.prompt_logprobs) == len(prompt) and out.prompt_logprobs[0] is None
        for i in range(1, len(prompt)):
            check_entry(out.prompt_logprobs[i], prompt[i], 2, wanted[i - 1])


def check_entry(entry, token, number, row):
    assert next(iter(entry)) == token
    assert {token, *row.topk(number).indices.tolist()} == set(entry)
    for i, value in entry.items():
        assert value == pytest.approx(row[i].item(), abs=2e-4)


def test_bias_and_penalties_reach_the_sampler(tiny):
    """The answer is what phase 2's sampler picks from transformers' logits, token by token."""
    params = SamplingParams(
        temperature=0, max_tokens=20, ignore_eos=True, repetition_penalty=1.3, presence_penalty=0.4,
        frequency_penalty=0.3, logit_bias={17: 3.0, 40: -100},
    )  # fmt: skip
    prompt, answer = [9, 17, 40, 9], []
    for _ in range(20):
        row = tiny.logits([prompt + answer])[0][-1:].clone()
        answer += Sampler().sample(row, [params], [prompt], [answer], [None]).token_ids
    assert tiny.engine(num_blocks=9, block_size=4).generate([prompt], params)[0].token_ids == answer
    assert answer != tiny.engine().generate([prompt], dataclasses.replace(GREEDY, max_tokens=20))[0].token_ids


def test_metrics_follow_the_clock(tiny):
    ticks = iter(range(10_000))
    engine = tiny.engine(clock=lambda: float(next(ticks)))
    a, b = engine.generate([[1, 2], [3]], dataclasses.replace(GREEDY, max_tokens=3))
    for out in (a, b):
        m = out.metrics
        assert m.arrival_time < m.first_scheduled_time < m.token_times[0]
        assert m.ttft == m.token_times[0] - m.arrival_time
        assert len(m.itls) == 2 and sum(m.itls) + m.ttft == m.e2e
        assert m.finished_time == m.token_times[-1]


# ---------------------------------------------------------------------- own parts, interleaving


def test_own_parts_are_used(tiny):
    wanted = tiny.engine().generate([[1, 2, 3]], GREEDY)[0].token_ids
    limits, manager = SchedulerConfig(max_model_len=128), BlockManager(20, 4)
    scheduler, cache = Scheduler(limits, manager), PagedKVCache(tiny.model.config, 20, 4)
    for part, method in ((manager, "reserve"), (scheduler, "schedule"), (cache, "attend")):
        setattr(part, method, Mock(wraps=getattr(part, method)))
    engine = tiny.engine(block_manager=manager, scheduler=scheduler, kv_cache=cache)
    assert engine.generate([[1, 2, 3]], GREEDY)[0].token_ids == wanted
    assert manager.reserve.called and scheduler.schedule.call_count == 12 and cache.attend.call_count == 36
    # A scheduler brings its own block manager along.
    scheduler = Scheduler(limits, BlockManager(30, 8))
    engine = tiny.engine(scheduler=scheduler)
    assert engine.core.block_manager is scheduler.block_manager
    assert engine.core.runner.kv_cache.block_size == 8
    assert engine.generate([[1, 2, 3]], GREEDY)[0].token_ids == wanted


def test_the_core_runs_without_the_assembly(tiny, make_prompts, monkeypatch):
    """No backend, no feature, no part of one's own."""
    monkeypatch.setattr("phase4_scheduler.ASSEMBLY", None)
    engine, prompts = tiny.engine(num_blocks=15, block_size=4), make_prompts(8, 400, lengths=(1, 20))
    assert (type(engine.core), type(engine.core.scheduler)) == (EngineCore, Scheduler)
    tiny.assert_greedy(prompts, tokens_of(engine.generate(prompts, GREEDY)))


def test_generate_beside_requests_that_others_added(tiny):
    prompts = [[1, 2], [3, 4, 5], [6], [7, 8]]
    wanted = tokens_of(tiny.engine().generate(prompts, GREEDY))
    engine, inbox = tiny.engine(), []
    engine.add_request("mine", prompts[0], GREEDY, on_output=inbox.append)
    engine.add_request("silent", prompts[0], GREEDY)
    engine.step()
    assert tokens_of(engine.generate(prompts[1:3], dataclasses.replace(GREEDY, max_tokens=4))) == [
        w[:4] for w in wanted[1:3]
    ]
    assert engine.has_unfinished_requests
    stream = engine.stream(prompts[3], GREEDY)
    first = next(stream)
    assert tokens_of(engine.generate([prompts[2]], GREEDY)) == [wanted[2]]
    rest = [t for o in stream for t in o.token_ids]
    assert first.token_ids + rest == wanted[3]
    assert [t for o in inbox for t in o.token_ids] == wanted[0] and inbox[-1].finished
    while engine.has_unfinished_requests:
        engine.step()


def test_arguments_of_generate(tiny):
    engine = tiny.engine()
    assert engine.generate([]) == []
    with pytest.raises(ValueError, match="1 params for 2 prompts"):
        engine.generate([[1], [2]], [GREEDY])
    assert len(engine.generate("one text", GREEDY)) == 1
    a, b = engine.generate([[1], [2]], [GREEDY, dataclasses.replace(GREEDY, max_tokens=3)])
    assert (len(a.token_ids), len(b.token_ids)) == (12, 3)
    assert a.prompt is None and a.prompt_token_ids == [1]
    out = engine.generate(["The king"], GREEDY)[0]
    assert out.prompt == "The king" and out.prompt_token_ids == tiny.tokenizer.encode("The king")


# ---------------------------------------------------------------------- the event stream


@pytest.mark.parametrize("name", ["roomy", "tight, swap"])
def test_events_tell_what_each_step_did(name, tiny, make_prompts, tmp_path):
    path = tmp_path / "events.jsonl"
    engine = tiny.engine(**SETTINGS[name])
    record(engine, path)
    prompts = make_prompts(16, 400, seed=2, lengths=(1, 20))
    params = [dataclasses.replace(DRAWN, seed=i, n=1 + (i % 4 == 0)) for i in range(16)]
    serve(engine, prompts, params)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [e["step"] for e in events] == list(range(engine.core.num_steps))
    for e in events:
        assert e["usage"] == pytest.approx(1 - e["free_blocks"] / (engine.core.block_manager.num_blocks - 1))
        assert set(e["tokens"]) == set(e["computed"]) == set(e["blocks"])
        assert sum(e["tokens"].values()) <= engine.core.scheduler.config.max_num_batched_tokens
        assert len(e["tokens"]) <= engine.core.scheduler.config.max_num_seqs
        assert e["seconds"] >= 0
    assert sum(len(e["evicted"]) for e in events) == engine.core.block_manager.stats.evicted_blocks
    assert sum(len(e["taken"]) for e in events) == engine.core.block_manager.stats.taken_blocks
    ended = [r for e in events for r in e["finished"]]
    assert len(ended) == len(set(ended)) == sum(p.n for p in params)
    assert sum(len(e["preempted"]) for e in events) == engine.core.stats.num_preemptions


def test_memory_that_torch_has_kept_is_free_for_the_next_engine(monkeypatch):
    free = [2**20]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free.append(2**33))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free[-1], 2**34))
    model = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float16, config=GPT2_124M)
    assert default_num_blocks(model, EngineConfig(max_num_seqs=8, max_model_len=1024)) == 8 * 64 + 1
