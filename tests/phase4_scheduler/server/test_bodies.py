"""What a body may cost before it is refused, and who may send one."""

import asyncio
import json
import tracemalloc

import pytest
from starlette.exceptions import HTTPException

from labkit.errors import LabError
from phase4_scheduler.server.bodies import longest_body, read_body
from phase4_scheduler.server.middleware import ApiKey, trusting
from phase4_scheduler.server.protocol import (
    ApiError,
    ChatCompletionRequest,
    CompletionRequest,
)

CONTEXT = 1024
KINDS = {"prompt": CompletionRequest, "messages": ChatCompletionRequest, "content": ChatCompletionRequest}
KINDS |= dict.fromkeys(("logit_bias", "allowed_token_ids", "unknown"), CompletionRequest)
ITEMS = ["1", "1.5", '"x"', "[]", "[1.5]", '{"type": "text", "text": ""}', '{"role": "user", "content": "x"}']


def body_of(field, value):
    if field == "content":
        return f'{{"messages": [{{"role": "user", "content": {value}}}]}}'.encode()
    return f'{{"{"user" if field == "prompt" else "prompt"}": "x", "{field}": {value}}}'.encode()


def peak(kind, raw):
    """Bytes of memory that reading a body takes, whether it is refused or not."""
    tracemalloc.start()
    try:
        read_body(kind, raw, CONTEXT)
    except (ApiError, HTTPException):
        pass
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return most


@pytest.mark.parametrize("field", KINDS)
@pytest.mark.parametrize("item", ITEMS)
def test_memory_grows_with_the_bytes_that_were_sent(field, item):
    """As a list, and as a list of a list. Before, a list of a list of fractions took 3 GB for 8 MB."""
    for number in (10_000, 2**20 // (len(item) + 1)):  # what is read, and what is refused before
        inner = "[" + ",".join([item] * number) + "]"
        for value in (inner, f"[{inner}]"):
            raw = body_of(field, value).ljust(2**20)
            assert peak(KINDS[field], raw) <= 20 * len(raw)


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


@pytest.mark.parametrize("context, most", [(1024, 2**20 + 2**16), (131_072, 9 * 2**20), (10**7, 32 * 2**20)])
def test_a_body_is_as_large_as_the_context_may_need(context, most):
    assert longest_body(context) == most
    tokens = json.dumps({"prompt": [131_071] * min(context, 3_000_000)}).encode()
    assert len(tokens) <= most
    assert len(read_body(CompletionRequest, tokens, context).prompt) == min(context, 3_000_000)


@pytest.mark.parametrize(
    "fields, param, message",
    [
        ({"logit_bias": {"7": 1, "King": 1, "Queen": 1}}, "logit_bias", "the key 'King' is no token id"),
        ({"logit_bias": {"7": "much", "8": []}}, "body.logit_bias.7", "logit_bias of '7' is no number"),
        ({"allowed_token_ids": [1, "a", "b"]}, "body.allowed_token_ids.1", "allowed_token_ids.1"),
    ],
)
def test_the_first_mistake_is_named(fields, param, message):
    with pytest.raises(ApiError, match=message) as caught:
        read_body(CompletionRequest, json.dumps({"prompt": "x"} | fields).encode(), CONTEXT)
    assert caught.value.body["error"]["param"] == param and caught.value.status == 400


# ---------------------------------------------------------------------- who may ask


def status_of(app, path="/v1/models", **headers):
    """The status with which a middleware answers, 200 if it lets the call through."""

    async def inner(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    found = []

    async def send(message):
        found.extend([message["status"]] if message["type"] == "http.response.start" else [])

    lines = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    asyncio.run(app(inner)({"type": "http", "method": "POST", "path": path, "headers": lines}, None, send))
    return found[0]


@pytest.mark.parametrize(
    "host, status",
    [
        *(
            (host, 200)
            for host in ("localhost:8000", "LOCALHOST:1", "a.localhost:8", "127.0.0.1:8000", "[::1]:8000")
        ),
        *((host, 200) for host in ("localhost", "gpu.example:8000", "GPU.example")),
        *(
            (host, 400)
            for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "x")
        ),
        *((host, 400) for host in ("[::1", "localhost@evil.example", "é", "10.1.2.3:80", "")),
    ],
)
def test_a_page_that_rebinds_its_name_to_this_machine_reads_nothing(host, status):
    assert status_of(lambda app: trusting(app, ["gpu.example"]), host=host) == status


def test_a_wrong_pattern_of_allowed_hosts_is_one_line():
    with pytest.raises(LabError, match=r"10\.0\.\*: .*must be like"):
        trusting(None, ["10.0.*"])


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/tokenize", "/detokenize"])
def test_the_key_guards_whatever_takes_a_body(path):
    assert status_of(lambda app: ApiKey(app, "secret"), path) == 401
    assert status_of(lambda app: ApiKey(app, "secret"), path, authorization="Bearer secret") == 200
    assert status_of(lambda app: ApiKey(app, "secret"), "/health") == 200
