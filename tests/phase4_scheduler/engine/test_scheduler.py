"""The scheduler without a model: what it refuses, and its script."""

import pytest

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler import scheduler_lab
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import Scheduler, SchedulerConfig


def test_without_chunks_a_prompt_must_fit_a_step():
    config = SchedulerConfig(chunked_prefill=False, max_num_batched_tokens=10, max_model_len=40)
    with pytest.raises(ValueError, match="12 tokens are over the budget of 10"):
        Scheduler(config, BlockManager(30, 4)).add(Request("no", [1] * 6, SamplingParams(max_tokens=6)))


def test_a_stop_token_counts_from_min_tokens_on():
    scheduler = Scheduler(SchedulerConfig(max_model_len=40), BlockManager(20, 4))
    request = Request("a", [100] * 4, SamplingParams(max_tokens=9, min_tokens=3, stop_token_ids=[7]))
    scheduler.add(request)
    while not request.finished:
        scheduler.update(scheduler.schedule(), [[7]])
    assert (request.finish_reason, request.stop_reason, len(request.output_token_ids)) == ("stop", 7, 3)


def test_the_story(run_script):
    claims = run_script(scheduler_lab)["claims"]
    assert set(claims) >= {"shared-budget", "preempted", "urgent"}
    assert all(claim["holds"] for claim in claims.values())
