"""PromQL on a recording: what a real Prometheus answered, and what is refused."""

import json
import math
from pathlib import Path

import pytest

from phase4_scheduler.server.drills import Recording, number, query

KEPT = json.loads(Path(__file__).with_name("prometheus_2_42.json").read_text())


@pytest.fixture(scope="module")
def recording() -> Recording:
    recording = Recording()
    for one in KEPT["series"]:
        labels = dict(one["labels"])
        name = labels.pop("__name__")
        for at, value in one["samples"]:
            recording.add(at, name, labels, value)
    return recording


@pytest.mark.parametrize("asked", KEPT["answers"], ids=lambda asked: f"{asked['query']} @ {asked['at']}")
def test_a_query_gives_what_prometheus_gave(recording, asked):
    result = query(recording, asked["query"], asked["at"])
    ours = result if isinstance(result, dict) else {frozenset(): result}
    theirs = {frozenset(labels.items()): float(value) for labels, value in asked["result"]}
    assert ours.keys() == theirs.keys()
    for labels, value in theirs.items():
        assert ours[labels] == pytest.approx(value, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rate(vllm:tokens_total", "parenthesis"),
        ("deriv(vllm:running[10s])", "deriv is not known here: rate, increase"),
        ("vllm:running % 2", "% is not known here"),
        ("topk(1, vllm:running)", "not known here"),
        ("vllm:running + on(kind) vllm:tokens_total", "add the labels up with sum"),
        (
            'vllm:running + vllm:running{engine="0"} * 0 or vllm:tokens_total offset 5s',
            "offset and @ are not known",
        ),
        ("rate(vllm:tokens_total[5m:10s])", "of a subquery"),
        ("sum without (kind) (vllm:running)", "with by"),
    ],
)
def test_what_is_not_known_is_refused_in_one_line(recording, text, says):
    with pytest.raises(ValueError, match=says) as caught:
        query(recording, text, 39.6)
    assert "\n" not in str(caught.value)


def test_one_number():
    recording = Recording()
    for at in range(11):
        recording.add(at, "a_total", {"kind": "x"}, 3.0 * at)
        recording.add(at, "b", {"kind": "x"}, 1.0)
        recording.add(at, "b", {"kind": "y"}, 2.0)
    assert number(recording, "rate(a_total[10s])", 10.0) == 3.0
    assert number(recording, "1 + 1", 10.0) == 2.0
    assert math.isnan(number(recording, "c", 10.0))
    with pytest.raises(ValueError, match="b has 2 values"):
        number(recording, "b", 10.0)
