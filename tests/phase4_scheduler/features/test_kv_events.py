"""KV events: replayed they are the prefix cache, and a router that follows them knows what an engine will find."""

import random

import pytest

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_table import hash_block
from phase4_scheduler.features.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from phase4_scheduler.simulator.routers import CacheAware
from phase4_scheduler.simulator.traffic import TrafficRequest

SETTINGS = {
    "plain": {},
    "preemption": {"num_blocks": 30},
    "swap": {"num_blocks": 30, "num_swap_blocks": 60, "preemption": "swap"},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_replayed_events_are_the_prefix_cache(name, tiny, make_prompts):
    """After every step, while requests are preempted, evicted and aborted."""
    settings = {"num_blocks": 60, "block_size": 4, "max_num_seqs": 6} | SETTINGS[name]
    engine = tiny.engine(**settings, enable_kv_cache_events=True)
    manager, rng, index, removed = engine.core.block_manager, random.Random(5), CacheAware(), 0
    for i, prompt in enumerate(make_prompts(24, 390)):
        engine.add_request(str(i), prompt, SamplingParams(max_tokens=rng.randint(1, 30), temperature=0))
    while engine.has_unfinished_requests:
        engine.step()
        if rng.random() < 0.05:
            engine.abort(str(rng.randrange(24)))
        events = manager.take_kv_events()
        for event in events:
            removed += isinstance(event, BlockRemoved)
            if isinstance(event, BlockStored):
                parent, size = event.parent_block_hash or b"", event.block_size
                for i, block_hash in enumerate(event.block_hashes):
                    parent = hash_block(parent, event.token_ids[i * size : (i + 1) * size])
                    assert parent == block_hash
        index.observe(0, events)
        assert sorted(index.held[0].elements()) == sorted(name for name, _ in manager.prefix_cache)
    assert removed > 20
    assert manager.reset_prefix_cache()
    assert manager.take_kv_events() == [AllBlocksCleared()]


def test_cache_aware_rule_by_rule():
    router = CacheAware()
    asked = TrafficRequest(0.0, 2100, 1, hash_ids=(1, 2, 3, 4))
    assert (
        router.choose(asked, [1, 0]) == 1
    )  # no cache holds it: the least loaded. Four blocks are to be computed there.
    router.observe(0, [BlockStored([1, 2, 3], None, [], 512), BlockStored([3], 2, [], 512)])
    assert router.choose(asked, [0, 0]) == 0 and router.choose(asked, [20, 0]) == 1
    router.observe(0, [BlockRemoved([3])])  # another block has the same content
    assert router.known_blocks(asked, 0) == 3
    router.observe(0, [BlockRemoved([1])])
    assert router.known_blocks(asked, 0) == 0
    router.observe(0, [BlockStored([1], None, [], 512), AllBlocksCleared()])
    assert router.known_blocks(asked, 0) == 0
