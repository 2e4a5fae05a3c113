"""The comparison finds what differs, and nothing else."""

import copy
import json

import pytest

from tests.phase4_scheduler.server.compare import differences
from tests.phase4_scheduler.server.record_vllm import ANSWERS
from tests.phase4_scheduler.server.shapes import SHAPES

RECORDED = json.loads(ANSWERS.read_text())["answers"]
SHAPE = {shape.name: shape for shape in SHAPES}


def answers(name):
    """The recorded answer, and a copy to change."""
    return SHAPE[name], RECORDED[name], copy.deepcopy(RECORDED[name])


def test_every_shape_is_recorded_and_agrees_with_itself():
    assert list(RECORDED) == [shape.name for shape in SHAPES]
    assert not [name for name in SHAPE if differences(*answers(name))]


@pytest.mark.parametrize(
    ("name", "path", "value", "found"),
    [
        ("completions: plain", "choices.0.text", "Once", "choices.0.text"),
        ("completions: plain", "choices.0.finish_reason", None, "choices.0.finish_reason"),
        ("completions: plain", "usage.total_tokens", 13, "usage.total_tokens"),
        ("completions: plain", "usage.total_tokens", 12.0, "usage.total_tokens"),
        ("completions: plain", "poetry", True, "poetry: only here"),
        ("completions: logprobs 1", "choices.0.logprobs.token_logprobs.2", -2.6, "token_logprobs.2"),
        ("completions: return_token_ids", "choices.0.token_ids", [44], "choices.0.token_ids: 8 items"),
        ("completions: top_p 0", "error.param", "body.top_p", "error.param"),
        ("completions: top_p 0", "error.message", "", "error.message"),
        ("completions: sampled", "usage.total_tokens", 13, "usage.total_tokens"),
    ],
)
def test_a_difference_is_found(name, path, value, found):
    shape, theirs, ours = answers(name)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = ours["body"]
    for key in parents:
        place = place[key]
    place[last] = value
    (line,) = differences(shape, theirs, ours)
    assert found in line


def test_a_field_that_is_missing_is_found():
    shape, theirs, ours = answers("completions: plain")
    del ours["body"]["choices"][0]["logprobs"]
    assert differences(shape, theirs, ours) == ["body.choices.0.logprobs: missing here"]


def test_another_status_or_content_type_is_found():
    shape, theirs, ours = answers("completions: plain")
    assert differences(shape, theirs, ours | {"status": 400}) == ["status: 200 there, 400 here"]
    (line,) = differences(shape, theirs, ours | {"content_type": "text/plain"})
    assert line.startswith("content type")


def test_words_and_class_names_of_an_error_are_free():
    shape, theirs, ours = answers("chat: message without a role")
    ours["body"]["error"] |= {"message": "A message needs a role.", "param": "body.messages.0.role"}
    assert theirs["body"]["error"]["param"] != "body.messages.0.role"
    assert not differences(shape, theirs, ours)


def test_a_stream_may_be_cut_elsewhere():
    shape, theirs, ours = answers("completions: stream with usage")
    first, second = ours["events"][:2]
    first["choices"][0]["text"] += second["choices"][0]["text"]
    del ours["events"][1]
    assert not differences(shape, theirs, ours)


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda events: events.pop(), "plain events"),
        (lambda events: events.pop(-2), "usage"),
        (lambda events: events.pop(1), "delta.content"),
        (lambda events: events.pop(0), "delta.role"),
        (lambda events: events[3].pop("created"), "fields.middle.created"),
        (lambda events: events[-3]["choices"][0].pop("stop_reason"), "stop_reason"),
        (lambda events: events[-3]["choices"][0].update(finish_reason="stop"), "finish_reason"),
    ],
)
def test_a_spoilt_stream_is_found(spoil, found):
    shape, theirs, ours = answers("chat: stream with usage")
    spoil(ours["events"])
    lines = differences(shape, theirs, ours)
    assert any(found in line for line in lines), lines
