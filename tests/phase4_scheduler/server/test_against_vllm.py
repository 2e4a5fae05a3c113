"""The server answers 871 requests as the real vLLM 0.32 answered them: same status, same fields, same greedy text."""

import json
import re

import pytest

from phase4_scheduler.server.client import running_server
from tests.phase4_scheduler.server.compare import differences
from tests.phase4_scheduler.server.record_vllm import ANSWERS, ask
from tests.phase4_scheduler.server.shapes import SERVERS, SHAPES

pytestmark = pytest.mark.proof

# What our server does otherwise, by patterns of names, and why.
OTHERWISE = {
    "logprobs of half a character": "vLLM drops a character that never became whole; here it is U+FFFD",
    "chat: message with null content": "taken as empty here, as vLLM does for an assistant",
    "get /$": "the page, which vLLM has not",
    "get /v1/models/tales": "OpenAI describes one model by its name; vLLM has no such route",
    "post /tokenize with (?!the key$|the key,)": "vLLM tokenises for clients without the key",
    "response_format json_schema|structured_outputs {'json': {'type': 'object'|: a schema": "of bytes that a grammar forces "
    "llguidance allows the canonical tokens here, and all tokens there",
    "completions: structured_outputs {'choice': \\['yes', 'no'": "the same",
    "completions: structured_outputs {'regex': 'a', 'choice'": "vLLM names the field in completions only",
    "structured_outputs ('a'|{'grammar': 'root ::='})": "vLLM answers 500",
    "use_beam_search": "refused here, ignored there",
    "tools: tool_choice ('required'|{.*'now')": "vLLM forces the tags of the parser and leaves the arguments free; here they match "
    "the tool's schema",
}


@pytest.fixture(scope="module")
def vllm():
    return json.loads(ANSWERS.read_text(encoding="utf-8"))["answers"]


def part_of(shape):
    """The shapes of the plain server are enough for three tests."""
    label = shape.name.partition(":")[0]
    return shape.server, label if label in ("completions", "chat") else "others"


@pytest.mark.parametrize("part", dict.fromkeys(map(part_of, SHAPES)), ids=" ".join)
def test_every_request_is_answered_as_vllm_answers_it(part, vllm):
    shapes = [
        shape
        for shape in SHAPES
        if part_of(shape) == part and not any(re.search(p, shape.name) for p in OTHERWISE)
    ]
    server, _ = part
    with running_server("--dtype", "float32", "--max-model-len", "512", *SERVERS[server]) as running:
        found = {
            shape.name: found
            for shape in shapes
            if (found := differences(shape, vllm[shape.name], ask(running.address, shape)))
        }
    assert not found, "\n".join(f"{name}: {'; '.join(what)}" for name, what in found.items())
