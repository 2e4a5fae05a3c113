"""The comparison finds what differs, and nothing else."""

import copy
import json

import pytest

from tests.phase4_scheduler.server.compare import differences
from tests.phase4_scheduler.server.record_vllm import ANSWERS
from tests.phase4_scheduler.server.shapes import SHAPES

RECORDED = json.loads(ANSWERS.read_text())["answers"]
SHAPE = {shape.name: shape for shape in SHAPES}
WHOLE, STREAMED = "completions: plain", "chat: stream with usage"


def spoilt(name, spoil):
    """The differences between a recorded answer and the same after `spoil`."""
    ours = copy.deepcopy(RECORDED[name])
    spoil(ours)
    return differences(SHAPE[name], RECORDED[name], ours)


def test_every_shape_is_recorded_and_agrees_with_itself():
    assert list(RECORDED) == [shape.name for shape in SHAPES]
    assert not [name for name in SHAPE if spoilt(name, lambda ours: None)]


@pytest.mark.parametrize(
    ("name", "spoil", "found"),
    [
        (WHOLE, lambda a: a.update(status=400), "status: 200 there, 400 here"),
        (WHOLE, lambda a: a.update(content_type="text/plain"), "content type"),
        (WHOLE, lambda a: a["body"]["choices"][0].update(text="Once"), "choices.0.text"),
        (WHOLE, lambda a: a["body"]["choices"][0].pop("logprobs"), "choices.0.logprobs: missing here"),
        (WHOLE, lambda a: a["body"]["choices"].append({}), "choices: 1 items there, 2 here"),
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


def test_words_of_errors_and_the_cuts_of_a_stream_are_free():
    def other_words(answer):
        answer["body"]["error"] |= {"message": "A message needs a role.", "param": "body.messages.0.role"}

    def other_cuts(answer):
        first, second = answer["events"][:2]
        first["choices"][0]["text"] += second["choices"][0]["text"]
        del answer["events"][1]

    assert not spoilt("chat: messages [{'content': 'Who is there?'}]", other_words)
    assert not spoilt("completions: stream with usage", other_cuts)
