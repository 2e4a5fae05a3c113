"""Structured output and tools over HTTP, with the openai package and by hand; what is not done is refused by its name."""

import http.client
import json
from urllib.parse import urlsplit

import jsonschema
import openai
import pytest

from phase4_scheduler.story.structured_story import SCHEMA
from tests.phase4_scheduler.server.test_server import running
from tests.phase4_scheduler.server.test_tools import TOOLS

pytestmark = pytest.mark.proof
PROMPT = {"prompt": "Once upon a time", "max_tokens": 60}
MESSAGES = {"messages": [{"role": "user", "content": "Who is there?"}], "max_tokens": 80}
TOOL = {"tools": TOOLS}


@pytest.fixture(scope="module")
def server():
    with running("--enable-auto-tool-choice", "--tool-call-parser", "hermes") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key="none")


@pytest.mark.parametrize("path, body", [("/v1/completions", PROMPT), ("/v1/chat/completions", MESSAGES)])
def test_an_answer_matches_its_schema(path, body, server):
    form = {"type": "json_schema", "json_schema": {"name": "hero", "schema": SCHEMA}}
    compact = {"disable_any_whitespace": True}
    asked = body | {"response_format": form, "structured_outputs": compact, "temperature": 0}
    choice = json.loads(server.call(path, asked)[1])["choices"][0]
    jsonschema.validate(json.loads(choice.get("text") or choice["message"]["content"]), SCHEMA)


def test_forced_tool_calls_whole_and_streamed(client):
    named = {"type": "function", "function": {"name": "weather"}}
    for choice, reason in ((named, "stop"), ("required", "tool_calls")):
        asked = dict(MESSAGES | TOOL, model="tales", tool_choice=choice, seed=3, parallel_tool_calls=False)
        whole = client.chat.completions.create(**asked).choices[0]
        calls = [(c.function.name, c.function.arguments) for c in whole.message.tool_calls]
        names, arguments, ended = {}, {}, None
        for chunk in client.chat.completions.create(stream=True, **asked):
            assert not chunk.choices[0].delta.content
            ended = chunk.choices[0].finish_reason or ended
            for call in chunk.choices[0].delta.tool_calls or ():
                names.setdefault(call.index, call.function.name)
                arguments[call.index] = arguments.get(call.index, "") + call.function.arguments
        assert calls == list(zip(names.values(), arguments.values(), strict=True)) and calls
        assert whole.finish_reason == ended
        assert ended == reason and all(isinstance(json.loads(text), dict) for _, text in calls)


def test_calls_that_are_none_are_refused(server):
    for wrong in (5, ["x"], [{"function": {"name": "now", "arguments": 7}}]):
        messages = [{"role": "assistant", "tool_calls": wrong}]
        assert server.call("/v1/chat/completions", {"messages": messages})[0] == 400


def test_the_model_by_its_name_and_the_description_of_the_calls(client, server):
    assert client.models.retrieve("tales").id == "tales"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    status, text = server.call("/openapi.json")
    schemas = json.loads(text)["components"]["schemas"]
    assert status == 200 and "structured_outputs" in schemas["CompletionRequest"]["properties"]


def test_a_load_balancer_that_asks_is_told_the_load(server):
    for form, begins in (
        ("TEXT", "TEXT named_metrics.kv_cache_usage_perc=0"),
        ("JSON", 'JSON {"named_metrics":{"kv'),
    ):
        connection = http.client.HTTPConnection(urlsplit(server.address).netloc, timeout=60)
        headers = {"content-type": "application/json", "endpoint-load-metrics-format": form}
        connection.request("POST", "/v1/completions", json.dumps(PROMPT | {"max_tokens": 1}), headers)
        assert connection.getresponse().getheader("endpoint-load-metrics").startswith(begins)
        connection.close()
