"""/metrics says what vLLM's says: same families, same counts after the same requests, times that lie where they should."""

import asyncio
import json
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.assembly import build_core
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.core import EngineCoreOutput
from phase4_scheduler.engine.output_processor import OutputProcessor, ParentRequest
from phase4_scheduler.engine.request import Request, RequestLimits
from phase4_scheduler.server.client import running_server, send_all
from phase4_scheduler.server.engine_process import Add, EngineLimits, StepMessage, StoredBytes, turn
from phase4_scheduler.server.metrics import Metrics
from phase4_scheduler.server.middleware import http_metrics
from tests.phase4_scheduler.server.vllm_requests import METRICS, ask, metrics_load

# Families of vLLM that have no meaning here.
NOT_HERE = {
    "vllm:engine_sleep_state": "this engine does not sleep",
    "vllm:external_prefix_cache_queries": "there is no cache outside the engine",
    "vllm:external_prefix_cache_hits": "the same",
    "vllm:prompt_tokens_cached_by_source": "the same: prompt_tokens_cached says it",
    "vllm:mm_cache_queries": "no pictures",
    "vllm:mm_cache_hits": "no pictures",
}
OTHER_LABELS = {"vllm:cache_config_info": "one label a setting, and each engine has its own settings"}
OTHER_SERIES = {"vllm:admission_rejections": "no limit on queued tokens here, so it is no reason"}


def families(text):
    """By name: type, and of each series its labels, with all bounds of a histogram."""
    return {
        family.name: (family.type, {tuple(sorted(sample.labels.items())) for sample in family.samples})
        for family in text_string_to_metric_families(text)
        if not family.name.endswith("_created")
    }


def samples(text):
    """By the name of a series, followed by the values of the labels that are its own: "vllm:request_success_total stop"."""
    common = ("model_name", "engine")
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    own = [[v for label, v in sample.labels.items() if label not in common] for sample in found]
    return {" ".join([sample.name, *labels]): sample.value for sample, labels in zip(found, own)}


@pytest.fixture
def metrics():
    return Metrics("tales", EngineLimits(RequestLimits(512), 100, EngineConfig(block_size=32), 0))


def read(metrics, name):
    return samples(metrics.page().decode())[f"vllm:{name}"]


def test_families_have_vllms_types_labels_and_buckets(metrics):
    http_metrics(None, metrics.registry)
    theirs, ours = families(METRICS.read_text()), families(metrics.page().decode())
    assert NOT_HERE.keys() <= theirs.keys() - ours.keys()
    theirs = {name: family for name, family in theirs.items() if name not in NOT_HERE}
    assert theirs.keys() == ours.keys()
    for name, (kind, series) in theirs.items():
        assert ours[name][0] == kind, name
        if name.startswith("vllm:") and name not in OTHER_LABELS | OTHER_SERIES:
            assert ours[name][1] == series, name


@pytest.mark.proof
def test_the_same_requests_count_the_same():
    with running_server("--dtype", "float32", "--max-model-len", "512", "--block-size", "32") as server:
        for asked in metrics_load():
            ask(server.address, asked)
        ours = samples(server.call("/metrics")[1])
    theirs = samples(METRICS.read_text())
    # How many steps the two prompts of one call share depends on the moment.
    no_counts = re.compile(
        r"(_created|_seconds_sum|_seconds_bucket|iteration_tokens_total_(count|bucket))( |$)"
    )
    counts = {
        key: value
        for key, value in theirs.items()
        if key in ours and key.startswith(("vllm:", "http_requests")) and not no_counts.search(key)
    }
    assert len(counts) > 100
    assert {key: ours[key] - value for key, value in counts.items() if ours[key] != value} == {}


# ---------------------------------------------------------------------- times


def test_a_client_waits_by_the_api_processs_clock_and_the_engine_by_its_own(metrics):
    """A request came in at 100 s, the core queued it up at 103 s and scheduled it at 107 s. The API process hears of each step a
    second after its end."""
    processor = OutputProcessor()
    processor.add(ParentRequest(Request("a", [1] * 10, SamplingParams(max_tokens=3), 100.0)))
    for ended, reason in ((112.0, None), (114.0, None), (118.0, "length")):
        new = EngineCoreOutput("a", [7], [None], reason, None, 103.0, 107.0, 4, 0)
        processed = processor.process(new, ended)
        metrics.grew(processed.parent, processed.output.outputs[0], ended + 1)
        metrics.step(StepMessage([new]))
    sums = {
        "time_to_first_token_seconds": 13,  # 100 to 113
        "request_queue_time_seconds": 4,  # 103 to 107
        "request_prefill_time_seconds": 5,  # 107 to 112
        "request_decode_time_seconds": 6,  # 112 to 118
        "request_inference_time_seconds": 11,  # 107 to 118
        "inter_token_latency_seconds": 6,  # 2 + 4
        "request_time_per_output_token_seconds": 3,  # 6 / 2
        "e2e_request_latency_seconds": 19,  # 100 to 119
    }
    assert {name: read(metrics, f"{name}_sum") for name in sums} == sums
    assert read(metrics, "inter_token_latency_seconds_count") == 2


# ---------------------------------------------------------------------- the engine's side


def run(core, requests, stored=None):
    """All messages, until no request is left. requests: prompts with their params."""
    commands = [Add(str(i), prompt, params, 0.0, 0) for i, (prompt, params) in enumerate(requests)]
    messages = [turn(core, commands, stored)]
    while core.scheduler.has_requests:
        messages.append(turn(core, [], stored))
    return messages


def test_a_preempted_request_does_not_look_up_its_prompt_a_second_time(tiny):
    core = build_core(tiny.model, EngineConfig(num_blocks=9, block_size=4, max_model_len=32))
    twice = [run(core, [([9] * 6, SamplingParams(max_tokens=1))])[-1] for _ in range(2)]
    assert [(last.stats.prefix_queries, last.stats.prefix_hits) for last in twice] == [(6, 0), (12, 4)]
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    last = run(core, [([i] * 6, params) for i in range(3)])[-1]
    assert last.stats.num_preemptions > 0
    assert (last.stats.prefix_queries, last.stats.prefix_hits) == (12 + 18, 4)


def test_the_queue_begins_when_the_core_has_the_request(tiny):
    """Whatever its client waited before, and for all of its answers."""
    ticks = iter(range(10**6))
    core = build_core(
        tiny.model, EngineConfig(num_blocks=30, block_size=4, max_num_batched_tokens=8), clock=lambda: next(ticks)
    )  # fmt: skip
    params = SamplingParams(max_tokens=2, n=2, ignore_eos=True)
    outputs = [new for message in run(core, [([1] * 20, params)]) for new in message.outputs]
    assert {new.queued_time for new in outputs} == {0}
    assert {new.first_scheduled_time for new in outputs} == {1}  # of the prompt's first chunk, not its last
    assert len(outputs) == 2


# tiny: 3 layers, 32 wide, the MLP 128, 400 tokens, float32
BLOCKS = 3 * (4 * 32 * 32 + 2 * 32 * 128)
HEAD = 400 * 32
PAIR = 4 * 3 * 32  # operations of attention
TOKEN = 2 * 3 * 32 * 4  # bytes of keys and values
IN_FULL = StoredBytes(4 * (BLOCKS + HEAD), TOKEN)


def test_a_narrow_cache_is_counted_as_it_is_stored(tiny):
    """In int8 a number takes one byte in place of four, and a scale of 2 bytes for each of 3 layers and 2 heads."""
    config = EngineConfig(num_blocks=20, block_size=4)
    core = build_core(tiny.model, config, kv_cache_dtype="int8_per_token_head")
    assert StoredBytes.of(core) == (4 * (BLOCKS + HEAD), TOKEN // 4 + 2 * 3 * 2 * 2)


def test_two_answers_share_the_weights_and_their_work_reaches_the_page(tiny, metrics):
    core = build_core(tiny.model, EngineConfig(num_blocks=20, block_size=4))
    params = SamplingParams(max_tokens=3, n=2, ignore_eos=True)
    messages = run(core, [([1] * 5, params.for_answer(i)) for i in range(2)], IN_FULL)
    for message in messages:
        metrics.step(message)
    # The prompt, of which the second answer computes what is no full block; then two steps of two tokens each.
    flops = 2 * (5 + 1 + 4) * BLOCKS + 2 * (2 + 4) * HEAD + PAIR * (15 + 5 + 2 * 6 + 2 * 7)
    assert read(metrics, "estimated_flops_per_gpu_total") == flops
    read_bytes = 3 * 4 * (BLOCKS + HEAD) + (4 + 2 * (5 + 6)) * TOKEN
    assert read(metrics, "estimated_read_bytes_per_gpu_total") == read_bytes
    assert read(metrics, "estimated_write_bytes_per_gpu_total") == (5 + 1 + 4) * TOKEN
    assert turn(core, []).work is None


# ---------------------------------------------------------------------- HTTP


def test_names_that_clients_make_up_share_one_series(metrics):
    app = Starlette(routes=[Route("/known", lambda request: Response())])
    app.add_middleware(http_metrics, registry=metrics.registry)
    client = TestClient(app)
    for call in ("POST /known", "GET /a", "FOO /b", "BAR /c", "GET /metrics"):
        client.request(*call.split())
    page = samples(metrics.page().decode())
    assert {key: value for key, value in page.items() if key.startswith("http_requests_total")} == {
        "http_requests_total /known POST 4xx": 1,
        "http_requests_total none GET 4xx": 1,
        "http_requests_total none other 4xx": 2,
    }


# ---------------------------------------------------------------------- a running server

KING = dict(prompt="The king said no. The king said", temperature=0, max_tokens=40, ignore_eos=True)
KINGS = [KING, KING | {"stop": "queen"}, KING | {"logprobs": 2, "max_tokens": 12}]


@pytest.mark.proof
def test_a_server_with_drafts_answers_the_same_and_counts_them():
    """Streams of several tokens a piece, a stop string, log probabilities; `usage` and the counters fit together."""
    with running_server("--dtype", "float32") as plain:
        expected = asyncio.run(send_all(plain.address, KINGS))
    for method in (dict(method="ngram", prompt_lookup_max=2), dict(model="tales-draft")):
        config = json.dumps(method | {"num_speculative_tokens": 3})
        with running_server("--dtype", "float32", "--speculative-config", config) as server:
            drafted = asyncio.run(send_all(server.address, KINGS))
            page = samples(server.call("/metrics")[1])
        for one, other in zip(expected, drafted, strict=True):
            assert not one.error and not other.error, method
            assert (one.text, one.finish_reason, one.usage) == (other.text, other.finish_reason, other.usage)
        accepted = page["vllm:spec_decode_num_accepted_tokens_total"]
        assert 0 < accepted <= page["vllm:spec_decode_num_draft_tokens_total"], method
        assert accepted == sum(v for name, v in page.items() if "num_accepted_tokens_per_pos_total" in name)
        assert page["vllm:generation_tokens_total"] == sum(a.usage["completion_tokens"] for a in drafted)
