"""The scheduler without a model: nothing may leak whatever comes, and the corner cases that real engines got wrong."""

import json

import pytest

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler import scheduler_lab
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import Scheduler, SchedulerConfig

STOP = 7


def make(num_blocks=10, block_size=4, caching=True, **config):
    return Scheduler(SchedulerConfig(**config), BlockManager(num_blocks, block_size, caching))


def request(name, prompt, max_tokens=5, **fields):
    params = SamplingParams(max_tokens=max_tokens, stop_token_ids=[STOP])
    prompt = [100 + i for i in range(prompt)] if isinstance(prompt, int) else prompt
    return Request(name, prompt, params, **fields)


def step(scheduler, token=None):
    """One step; every request that is all computed gets `token` (or a different one for each place)."""
    output = scheduler.schedule()
    tokens = [[token or 1000 + len(s.request.token_ids)] if s.samples else [] for s in output.scheduled]
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
    assert manager.num_free_blocks == manager.num_blocks - 1
    assert not scheduler.running and not len(scheduler.waiting)


# ---------------------------------------------------------------------- preemption


# ---------------------------------------------------------------------- limits


def test_oversized_requests_are_refused_on_arrival_and_leave_nothing():
    scheduler = make(num_blocks=5, max_model_len=30, max_num_seqs=2)
    for item, message in [
        (request("a", 30), "the prompt has 30 tokens, the context holds 30"),
        (
            request("b", 10, 8),
            "10 prompt tokens and an answer of 8 do not fit the 16 tokens that the KV cache has",
        ),
        (request("c", 10, None), "10 prompt tokens and an answer of 20 do not fit"),
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


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "max_model_len", "reason", "number"),
    [
        ([STOP, STOP, STOP], 9, 41, "stop", 3),  # min_tokens is 3 there: the first two do not count
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
    item.min_tokens = 3 if max_model_len == 41 else 0
    scheduler.add(item)
    for token in tokens:
        assert not item.finished
        step(scheduler, token)
    assert (item.finish_reason, len(item.output_token_ids)) == (reason, number)
    assert item.stop_reason == (STOP if reason == "stop" else None)
    assert_free(scheduler)


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
