"""The server answers 745 requests as the real vLLM 0.32 answered them: same status, same fields, same greedy text."""

import json

import pytest

from phase4_scheduler.server.client import running_server
from tests.phase4_scheduler.server.compare import differences
from tests.phase4_scheduler.server.record_vllm import ANSWERS, ask
from tests.phase4_scheduler.server.shapes import SHAPES

pytestmark = pytest.mark.proof

# What our server does otherwise, and why.
OTHERWISE = {
    "completions: logprobs of half a character": "vLLM drops a character that never became whole; here it is U+FFFD",
    "chat: logprobs of half a character": "the same",
    "chat: message with null content": "taken as empty here, as vLLM does for an assistant",
    "get /": "the page, which vLLM has not",
    "get /v1/models/tales": "OpenAI describes one model by its name; vLLM has no such route",
} | dict.fromkeys(
    (
        f"post /tokenize with {key}"
        for key in ("no key", "a wrong key", "an empty key", "the key alone", "basic")
    ),
    "vLLM tokenises for clients without the key",
)


def serve(*options):
    """A server in processes of its own. Yields its address."""
    with running_server("--dtype", "float32", "--max-model-len", "512", *options) as running:
        yield running.address


@pytest.fixture(scope="module")
def server():
    yield from serve()


@pytest.fixture(scope="module")
def guarded_server():
    yield from serve("--api-key", "secret")


@pytest.fixture(scope="module")
def vllm():
    return json.loads(ANSWERS.read_text(encoding="utf-8"))["answers"]


def check(address, shapes, vllm):
    found = {
        shape.name: found
        for shape in shapes
        if shape.name not in OTHERWISE
        and (found := differences(shape, vllm[shape.name], ask(address, shape)))
    }
    assert not found, "\n".join(f"{name}: {'; '.join(what)}" for name, what in found.items())


def test_every_request_is_answered_as_vllm_answers_it(server, vllm):
    check(server, [shape for shape in SHAPES if not shape.api_key], vllm)


def test_the_api_key_guards_what_it_guards_there(guarded_server, vllm):
    check(guarded_server, [shape for shape in SHAPES if shape.api_key], vllm)
