"""The scheduler without a model: what it refuses, and how an answer ends; and its script."""

import pytest

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler import scheduler_lab
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import Scheduler, SchedulerConfig

STOP = 7


def test_without_chunks_a_prompt_must_fit_a_step():
    config = SchedulerConfig(chunked_prefill=False, max_num_batched_tokens=10, max_model_len=40)
    with pytest.raises(ValueError, match="12 tokens are over the budget of 10"):
        Scheduler(config, BlockManager(30, 4)).add(Request("no", [1] * 6, SamplingParams(max_tokens=6)))


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "min_tokens", "max_model_len", "reason"),
    [
        ([STOP, STOP, STOP], 9, 3, 40, "stop"),  # the first two do not count
        ([1, 1, 1, STOP], 9, 0, 40, "stop"),  # the stop token is the one that fills a block (4 + 4 = 8)
        ([1, STOP], 2, 0, 40, "stop"),  # at the last token that is allowed, a stop is a stop
        ([1, 1, 1], 3, 0, 40, "length"),
        ([1, 1, 1, 1], 4, 0, 8, "length"),  # max_tokens and max_model_len together
        ([1, 1, 1, 1], None, 0, 8, "length"),
        ([1, 1, 1, STOP], 4, 0, 8, "stop"),
    ],
)
def test_how_an_answer_ends(tokens, max_tokens, min_tokens, max_model_len, reason):
    scheduler = Scheduler(SchedulerConfig(max_model_len=max_model_len), BlockManager(20, 4))
    params = SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens, stop_token_ids=[STOP])
    request = Request("a", [100, 101, 102, 103], params)
    scheduler.add(request)
    for token in tokens:
        assert not request.finished
        scheduler.update(scheduler.schedule(), [[token]])
    assert (request.finish_reason, request.output_token_ids) == (reason, tokens)
    assert request.stop_reason == (STOP if reason == "stop" else None)
    manager = scheduler.block_manager
    manager.check_integrity()
    assert manager.num_free_blocks == manager.num_blocks - 1 and not scheduler.has_requests


def test_the_story(run_script):
    claims = run_script(scheduler_lab)["claims"]
    assert set(claims) >= {"shared-budget", "preempted", "urgent"}
    assert all(claim["holds"] for claim in claims.values())


def test_the_script_has_no_model(mistake_of):
    assert "unrecognized arguments" in mistake_of(scheduler_lab, "--model", "tales")
