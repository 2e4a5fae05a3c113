"""A feature written outside the core, in a test: the example of features/README.md; and which pairs are refused."""

import re

import pytest

from labkit.paths import ROOT
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.assembly import find_features
from phase4_scheduler.engine import EngineConfig, LLMEngine, Scheduler, SchedulerConfig
from phase4_scheduler.features.kv_transfer import KVConnector
from phase4_scheduler.features.recording import record

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def fair_share():
    """`FairShare` of features/README.md, from running its code."""
    text = (ROOT / "phase4_scheduler/features/README.md").read_text(encoding="utf-8")
    names: dict = {"__name__": __name__}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], names)
    return names["FairShare"]


def test_a_feature_of_ones_own_changes_the_steps_and_no_token(fair_share, tiny, make_prompts):
    prompts = [list(range(40)), *make_prompts(8, 400, lengths=(3, 8))]
    config = EngineConfig(num_blocks=60, block_size=4, max_num_batched_tokens=64)
    most = {}
    for share in (1.0, 0.25):
        features = [fair_share(fair_share=share), *find_features({})]
        engine, events = LLMEngine(tiny.model, tiny.tokenizer, config, features=features), []
        record(engine, events.append)
        outputs = engine.generate(prompts, GREEDY)
        tiny.assert_greedy(prompts, [output.token_ids for output in outputs])
        most[share] = max(max(event["tokens"].values()) for event in events)
        engine.core.block_manager.check_integrity()
    assert most == {1.0: 40, 0.25: 16}


def test_a_feature_that_is_off_allows_a_scheduler_of_ones_own(fair_share, tiny):
    scheduler = Scheduler(SchedulerConfig(), BlockManager(20))
    engine = LLMEngine(tiny.model, None, EngineConfig(), scheduler=scheduler, features=[fair_share()])
    assert engine.core.scheduler is scheduler


ASYNC = dict(async_scheduling=True)
SWAP = dict(preemption="swap", num_swap_blocks=4)
CONNECTOR = dict(kv_connector=KVConnector())
NGRAM = dict(speculative_config=dict(method="ngram", num_speculative_tokens=2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ASYNC | NGRAM, "do not go together: how many tokens a step brings"),
        (ASYNC | SWAP, "do not go together: .*swapped out"),
        (CONNECTOR | NGRAM, "speculative_config and kv_connector do not go together"),
        (CONNECTOR | SWAP, "preemption and kv_connector do not go together"),
        (CONNECTOR | dict(kv_cache_dtype="fp8"), "kv_cache_dtype and kv_connector do not go together"),
        (
            SWAP | dict(executor=object()),
            "preemption and tensor_parallel_size .* the ranks have no swap space",
        ),
        (CONNECTOR | dict(executor=object()), "kv_connector and tensor_parallel_size do not go together"),
    ],
)
def test_pairs_that_do_not_go_together_are_refused_in_one_line(settings, message, tiny):
    with pytest.raises(ValueError, match=message) as refusal:
        LLMEngine(tiny.model, tiny.tokenizer, EngineConfig(num_blocks=20), **settings)
    assert "\n" not in str(refusal.value)


def test_a_scheduler_of_ones_own_without_the_hooks_of_a_feature_is_refused(tiny):
    scheduler = Scheduler(SchedulerConfig(), BlockManager(20))
    with pytest.raises(ValueError, match="needs a scheduler that is a SpeculativeScheduler"):
        LLMEngine(tiny.model, None, EngineConfig(), scheduler=scheduler, **NGRAM)


class Remote(KVConnector):
    """Another engine has all tokens but the last."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return max(0, request.num_tokens - 1 - num_computed_tokens), False


def test_what_a_connector_brings_is_no_prefix_hit(tiny):
    engine = tiny.engine(kv_connector=Remote(), num_blocks=20, block_size=4)
    engine.core.runner.kv_cache.storage.data.zero_()  # it brings nothing but zeros
    for _ in range(2):  # the second time, two blocks are in the own cache
        engine.generate([[5] * 10], GREEDY)
    assert (engine.core.stats.prefix_queries, engine.core.stats.prefix_hits) == (20, 8)
