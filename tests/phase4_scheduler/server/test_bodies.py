"""What a body may cost before it is refused, and who may send one."""

import asyncio
import json
import tracemalloc

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from labkit.errors import LabError
from phase1_tokens_embeddings.chat import ChatTemplate
from phase4_scheduler.server.bodies import longest_body, read_body
from phase4_scheduler.server.chat import rendered
from phase4_scheduler.server.middleware import ApiKey, trusting
from phase4_scheduler.server.protocol import (
    ApiError,
    ChatCompletionRequest,
    CompletionRequest,
    TokenizeRequest,
)

CONTEXT = 1024


@pytest.mark.parametrize(
    "text, what",
    [
        ("[[],[]]", None),
        ("[" + "[]," * 30_000 + "[]]", "30,003 objects and lists, and at most 16,384"),
        ("[" + "{}," * 30_000 + "{}]", "30,003 objects and lists"),
        ("[" + "1," * 140_000 + "1]", "140,001 items"),
        ('"' + "[]{},:" * 20_000 + '"', None),  # inside a string
        ('"' + '\\"[],' * 40_000 + '"', None),  # behind escaped quotes
        ('["' + "\\\\" * 40_000 + '", "' + "[" * 40_000 + '"]', None),  # an escaped backslash escapes no quote
        ('"' + "\\\\" * 40_000 + '",' + "[" * 40_000, "40,001 objects"),
    ],
)  # fmt: skip
def test_parts_are_counted_outside_of_strings(text, what):
    raw = f'{{"prompt": "x", "unknown": {text}}}'.encode()
    if what is not None:
        with pytest.raises(HTTPException, match=what):
            read_body(CompletionRequest, raw, CONTEXT)
        return
    assert read_body(CompletionRequest, raw, CONTEXT).prompt == "x"


def test_biases_for_a_hundred_thousand_tokens_are_not_twice_in_memory():
    raw = json.dumps({"prompt": "x", "logit_bias": dict.fromkeys(range(105_000), 1)}).encode()
    tracemalloc.start()
    read_body(CompletionRequest, raw, CONTEXT)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * len(raw)


@pytest.mark.parametrize("context, most", [(1024, 2**20 + 2**16), (131_072, 9 * 2**20), (10**7, 32 * 2**20)])
def test_a_body_is_as_large_as_the_context_may_need(context, most):
    assert longest_body(context) == most
    tokens = json.dumps({"prompt": [131_071] * min(context, 3_000_000)}).encode()
    assert len(tokens) <= most
    assert len(read_body(CompletionRequest, tokens, context).prompt) == min(context, 3_000_000)


# ---------------------------------------------------------------------- what a chat template gets, and what is refused


@pytest.mark.parametrize(
    "fields, text",
    [
        ({}, "None hi"),
        ({"chat_template_kwargs": {"enable_thinking": False, "messages": [], "tools": 5}}, "False None hi"),
        ({"reasoning_effort": "none"}, "False none None hi"),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            "False low None hi",
        ),
        ({"documents": [{"text": "a"}]}, "[{'text': 'a'}] hi"),
    ],
)
@pytest.mark.parametrize("kind", [ChatCompletionRequest, TokenizeRequest])
def test_a_chat_template_gets_what_the_client_gives_it(kind, fields, text):
    template = ChatTemplate(
        "{{ enable_thinking }} {{ reasoning_effort }} {{ documents }} {{ messages[0].content }}", {}
    )
    body = {"messages": [{"role": "user", "content": "hi"}]} | fields
    asked = read_body(kind, json.dumps(body).encode(), CONTEXT)
    assert asyncio.run(rendered(template, asked)).split() == text.split()
    for name in ("self", "chat_template"):
        asked.chat_template_kwargs = {name: "x"}
        with pytest.raises(ApiError, match="chat template fails"):
            asyncio.run(rendered(template, asked))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"use_beam_search": True, "n": 2, "temperature": 0}, "use_beam_search is not supported"),
        ({"logprob_token_ids": [1], "logprobs": 1}, "logprob_token_ids is not"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex is not supported: structured_outputs"),
        ({"prompt_embeds": "AA"}, "prompt_embeds is not supported: give"),
        ({"repetition_detection": {"max_pattern_size": 3}}, "repetition_detection is not"),
        ({"thinking_token_budget": 0}, "thinking_token_budget is not"),
        *(({"cache_salt": salt}, "cache_salt: a text of 1 to 128") for salt in ("", "a/b", "x" * 129, 5)),
    ],
)
def test_what_is_wrong_or_not_done_is_one_line(fields, message):
    with pytest.raises(ApiError, match=message) as caught:
        read_body(CompletionRequest, json.dumps({"prompt": "x"} | fields).encode(), CONTEXT)
    assert "\n" not in str(caught.value) and caught.value.body["error"]["param"] in fields
    fine = {"cache_salt": "ok", "thinking_token_budget": -1, "use_beam_search": 0, "temperature": 0.5}
    asked = read_body(CompletionRequest, json.dumps({"prompt": "x"} | fine).encode(), CONTEXT)
    params = asked.params({"temperature": 0, "top_k": 5})  # the model's defaults
    assert (params.temperature, params.top_k) == (0.5, 5)


# ---------------------------------------------------------------------- who may ask


TRUSTED = ["localhost:8000", "a.localhost:8", "127.0.0.1:8000", "[::1]:8000", "GPU.example:8000"]
OTHERS = ["evil.example", "localhost.evil.example", "[::1", "é", "10.1.2.3:80", ""]


@pytest.mark.parametrize("host", TRUSTED + OTHERS)
def test_a_page_that_rebinds_its_name_to_this_machine_reads_nothing(host):
    app = Starlette(routes=[Route("/", lambda request: Response())])
    client = TestClient(trusting(app, ["gpu.example"]))
    answer = client.get("/", headers={b"host": host.encode("latin-1")})
    assert answer.status_code == (200 if host in TRUSTED else 400)


def test_a_wrong_pattern_of_allowed_hosts_is_one_line():
    with pytest.raises(LabError, match=r"10\.0\.\*: .*must be like"):
        trusting(None, ["10.0.*"])


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/tokenize", "/detokenize"])
def test_the_key_guards_whatever_takes_a_body(path):
    app = Starlette(routes=[Route(each, lambda request: Response()) for each in (path, "/health")])
    client = TestClient(ApiKey(app, "secret"))
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"Authorization": "Bearer secret"}).status_code == 200
    assert client.get("/health").status_code == 200
