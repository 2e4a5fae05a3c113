"""`lab claims` with reports that are damaged, older or hostile: a line on each, and the others are told."""

import json

import pytest

from labkit import command
from labkit.claims import CLAIMS
from labkit.paths import outputs
from labkit.predictions import Prediction

GOOD = Prediction("hello-ids", "the ids", [15496], [15496]).to_json()


def write(name, content):
    file = outputs() / "reports" / "phase1_tokens_embeddings" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    file.write_bytes(text.encode("utf-8", errors="surrogateescape"))
    return file


def with_one(**changes):
    return {"predictions": [GOOD | changes]}


def test_the_ledger(capsys):
    corrected = Prediction("llama32-3b-layers", "?", 28, 28, source_says=32)
    write("a", {"predictions": [GOOD, Prediction("density", "?", needs="download").to_json()]})
    write("b", {"predictions": [corrected.to_json()]})
    assert command.main(["claims"]) == 0
    out = capsys.readouterr().out
    assert "1 reproduced" in out and "1 corrected" in out and "1 needs a download" in out
    assert f"{sum(map(len, CLAIMS.values())) - 3} not run yet" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "null", "[]", '"text"', "[" * 100_000, "\udcff", '{"predictions": null}', {"predictions": {}},
        {"predictions": [[]]}, {"predictions": [{}]}, {"predictions": [{"claim": "hello-ids"}]},
        with_one(claim=["hello-ids"]), with_one(claim=None), with_one(kind="x"), with_one(needs="a card"), with_one(needs=[]),
        with_one(unit=3), with_one(tolerance="much"), with_one(points=4), with_one(points="3"[:0]),
        with_one(measured={"a": 1}), with_one(predicted=[[[[1]]]]),
    ],
)  # fmt: skip
def test_a_damaged_report_gets_one_line(content, capsys):
    write("bad", content)
    write("good", {"predictions": [GOOD]})
    assert command.main(["claims"]) == 0
    told = capsys.readouterr()
    about = [line for line in told.out.splitlines() if "bad.json cannot be used" in line]
    assert len(about) == 1 and "run its script again" in about[0] and len(about[0]) < 600
    assert "1 reproduced" in told.out and told.err == ""


@pytest.mark.parametrize(
    "measured", [10**400, -(10**19), 1e308, float("nan"), float("inf"), "x\x1b[2Jy", "x" * 10_000, [1] * 10_000, "\ud800"]
)  # fmt: skip
def test_whatever_was_measured_can_be_shown(measured, capsys):
    write("odd", with_one(measured=measured, predicted=1.5, tolerance=0.1))
    assert command.main(["claims"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and len(out) < 40_000 and max(map(len, out.splitlines())) <= 700
