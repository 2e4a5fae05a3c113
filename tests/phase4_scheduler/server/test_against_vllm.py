"""The server answers 871 requests as the real vLLM 0.32 answered them: same status, same fields, same greedy text.

And what compares them finds each kind of difference.
"""

import copy
import re

import pytest

from phase4_scheduler.server.client import running_server
from tests.phase4_scheduler.server.compare import differences
from tests.phase4_scheduler.server.vllm_requests import SERVERS, ask, recorded

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


@pytest.mark.proof
@pytest.mark.parametrize("server", SERVERS)
def test_every_request_is_answered_as_vllm_answers_it(server):
    with running_server("--dtype", "float32", "--max-model-len", "512", *SERVERS[server]) as running:
        found = {
            asked.name: found
            for asked, answer in recorded().values()
            if asked.server == server
            and not any(re.search(pattern, asked.name) for pattern in OTHERWISE)
            and (found := differences(asked, answer, ask(running.address, asked)))
        }
    assert not found, "\n".join(f"{name}: {'; '.join(what)}" for name, what in found.items())


# ---------------------------------------------------------------------- the comparison finds what differs, and nothing else

WHOLE, STREAMED = "completions: plain", "chat: stream with usage"


@pytest.mark.parametrize(
    ("name", "spoil", "found"),
    [
        (WHOLE, lambda a: a.update(status=400), "status: 200 there, 400 here"),
        (WHOLE, lambda a: a.update(content_type="text/plain"), "content type"),
        (WHOLE, lambda a: a["body"]["choices"][0].update(text="Once"), "choices.0.text"),
        (WHOLE, lambda a: a["body"]["choices"][0].pop("logprobs"), "choices.0.logprobs: missing here"),
        (WHOLE, lambda a: a["body"].update(poetry=True), "poetry: only here"),
        (WHOLE, lambda a: a["body"]["usage"].update(total_tokens=12.0), "usage.total_tokens"),
        ("completions: sampled", lambda a: a["body"]["usage"].update(total_tokens=13), "usage.total_tokens"),
        ("completions: top_p 0", lambda a: a["body"]["error"].update(message=""), "error.message"),
        (STREAMED, lambda a: a["events"].pop(), "plain events"),
        (STREAMED, lambda a: a["events"].pop(-2), "usage"),
        (STREAMED, lambda a: a["events"].pop(1), "delta.content"),
        (STREAMED, lambda a: a["events"][3].pop("created"), "fields.middle.created"),
    ],
)
def test_a_difference_is_found(name, spoil, found):
    asked, theirs = recorded()[name]
    ours = copy.deepcopy(theirs)
    spoil(ours)
    assert any(found in line for line in differences(asked, theirs, ours))
