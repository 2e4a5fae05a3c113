"""KV events: replayed they are the prefix cache, vLLM reads them, and a router that follows them knows what an engine will find."""

import random

import pytest

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_table import hash_block
from phase4_scheduler.features.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, block_names
from phase4_scheduler.simulator.routers import CacheAware
from phase4_scheduler.simulator.traffic import TrafficRequest

UNPUBLISHED = {"enable_kv_cache_events": True, "publisher": "null"}
SETTINGS = {
    "plain": {},
    "preemption": {"num_blocks": 30},
    "swap": {"num_blocks": 30, "num_swap_blocks": 60, "preemption": "swap"},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
}


def asked(ids):
    """A prompt, as a router sees it."""
    return TrafficRequest(0.0, len(ids), 2, hash_ids=tuple(block_names(ids, 4)))


@pytest.mark.parametrize("name", SETTINGS)
def test_replayed_events_are_the_prefix_cache(name, tiny, make_prompts):
    """After every step, while requests are preempted, evicted and aborted."""
    settings = {"num_blocks": 60, "block_size": 4, "max_num_seqs": 6} | SETTINGS[name]
    engine = tiny.engine(**settings, kv_events_config=UNPUBLISHED)
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


def test_a_router_knows_what_two_engines_will_find(tiny):
    """Talks that come back, in small caches: what the router counts as cached is what the engine reports."""
    engines = [tiny.engine(num_blocks=24, block_size=4, kv_events_config=UNPUBLISHED) for _ in range(2)]
    router, rng, talks, found = CacheAware(), random.Random(1), [[i] * 9 for i in range(1, 7)], 0
    for _ in range(60):
        talk = rng.choice(talks)
        talk += [rng.randrange(390) for _ in range(4)]
        if len(talk) > 60:
            del talk[9:]
        chosen = router.choose(asked(talk), [0, 0])
        known = router.known_blocks(asked(talk[:-1]), chosen)  # the last token is always computed
        output = engines[chosen].generate([list(talk)], SamplingParams(max_tokens=2, temperature=0))[0]
        assert output.metrics.num_cached_tokens == 4 * known
        found += known
        for i, engine in enumerate(engines):
            router.observe(i, engine.core.block_manager.take_kv_events())
    assert found > 100


def test_a_subscriber_reads_vllms_messages(tiny):
    """Three frames, the last a KVEventBatch of vllm/distributed/kv_events.py: [time, events, rank]. Refused: a second engine at the
    same endpoint, what is not known here."""
    msgspec, zmq = pytest.importorskip("msgspec"), pytest.importorskip("zmq")
    endpoint = "inproc://kv-events"
    config = {"enable_kv_cache_events": True, "endpoint": endpoint, "topic": "kv"}
    engine = tiny.engine(num_blocks=20, block_size=4, kv_events_config=config)
    subscriber = zmq.Context.instance().socket(zmq.SUB)
    subscriber.connect(endpoint)
    subscriber.subscribe(b"kv")
    prompt = list(range(10))
    engine.generate([prompt], SamplingParams(max_tokens=6, temperature=0))
    engine.generate([prompt], SamplingParams(max_tokens=6, temperature=0, cache_salt="alice"))
    numbers, stored = [], []
    while subscriber.poll(1000 * (not numbers)):
        topic, number, payload = subscriber.recv_multipart()
        assert topic == b"kv"
        numbers.append(int.from_bytes(number, "big"))
        stored += msgspec.msgpack.decode(payload)[1]
    assert numbers == list(range(len(numbers))) and len(numbers) > 1
    first, second, *_ = stored
    hashes = first.pop("block_hashes")
    where = {"block_size": 4, "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": None}
    assert first == {"type": "BlockStored", "parent_block_hash": None, "token_ids": prompt[:8]} | where
    assert second["parent_block_hash"] == hashes[-1] and len(hashes) == 2
    salted = [event for event in stored if event.get("extra_keys")]
    assert [event["token_ids"] for event in salted] == [prompt[:8]] and len(salted[0]["extra_keys"]) == 2
    with pytest.raises(ValueError, match="Address already in use"):
        tiny.engine(kv_events_config=config)
    subscriber.close(linger=0)
    engine.core.shutdown()
    for field, value in (("replay_endpoint", "x"), ("publisher", "kafka"), ("endpoint", "no address")):
        with pytest.raises(ValueError, match=value if field == "publisher" else field):
            tiny.engine(kv_events_config={"enable_kv_cache_events": True, field: value})


def test_cache_aware_rule_by_rule():
    router = CacheAware()
    asked = TrafficRequest(0.0, 2100, 1, hash_ids=(1, 2, 3, 4))
    # No cache holds it: the least loaded. Four blocks are to be computed there.
    assert router.choose(asked, [1, 0]) == 1
    router.observe(0, [BlockStored([1, 2, 3], None, [], 512), BlockStored([3], 2, [], 512)])
    assert router.choose(asked, [0, 0]) == 0 and router.choose(asked, [20, 0]) == 1
    router.observe(0, [BlockRemoved([3])])  # another block has the same content
    assert router.known_blocks(asked, 0) == 3
    router.observe(0, [BlockRemoved([1])])
    assert router.known_blocks(asked, 0) == 0
    router.observe(0, [BlockStored([1], None, [], 512), AllBlocksCleared()])
    assert router.known_blocks(asked, 0) == 0
