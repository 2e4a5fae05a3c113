"""The comparison finds what differs, and nothing else."""

import copy

import pytest

from tests.phase4_scheduler.server.compare import differences
from tests.phase4_scheduler.server.record_vllm import recorded

WHOLE, STREAMED = "completions: plain", "chat: stream with usage"


def spoilt(name, spoil):
    """The differences between a recorded answer and the same after `spoil`."""
    asked, theirs = recorded()[name]
    ours = copy.deepcopy(theirs)
    spoil(ours)
    return differences(asked, theirs, ours)


@pytest.mark.parametrize(
    ("name", "spoil", "found"),
    [
        (WHOLE, lambda a: a.update(status=400), "status: 200 there, 400 here"),
        (WHOLE, lambda a: a.update(content_type="text/plain"), "content type"),
        (WHOLE, lambda a: a["body"]["choices"][0].update(text="Once"), "choices.0.text"),
        (WHOLE, lambda a: a["body"]["choices"][0].pop("logprobs"), "choices.0.logprobs: missing here"),
        (WHOLE, lambda a: a["body"]["choices"].append({}), "choices.1: only here"),
        (WHOLE, lambda a: a["body"].update(poetry=True), "poetry: only here"),
        (WHOLE, lambda a: a["body"]["usage"].update(total_tokens=12.0), "usage.total_tokens"),
        ("completions: sampled", lambda a: a["body"]["usage"].update(total_tokens=13), "usage.total_tokens"),
        ("completions: top_p 0", lambda a: a["body"]["error"].update(param="body.top_p"), "error.param"),
        ("completions: top_p 0", lambda a: a["body"]["error"].update(message=""), "error.message"),
        (STREAMED, lambda a: a["events"].pop(), "plain events"),
        (STREAMED, lambda a: a["events"].pop(-2), "usage"),
        (STREAMED, lambda a: a["events"].pop(1), "delta.content"),
        (STREAMED, lambda a: a["events"].pop(0), "delta.role"),
        (STREAMED, lambda a: a["events"][3].pop("created"), "fields.middle.created"),
        (STREAMED, lambda a: a["events"][-3]["choices"][0].pop("stop_reason"), "stop_reason"),
    ],
)
def test_a_difference_is_found(name, spoil, found):
    assert any(found in line for line in spoilt(name, spoil))
