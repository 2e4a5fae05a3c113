"""Answers of any size are made, joined and encoded in small pieces, between which other clients have their turn."""

import asyncio
import json
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from starlette.responses import StreamingResponse

from phase2_attention_kvcache.model.logprobs import TokenLogprobs
from phase4_scheduler.engine.outputs import CompletionOutput, RequestMetrics
from phase4_scheduler.server import calls, chat, encoding
from phase4_scheduler.server.completions import Completion
from phase4_scheduler.server.encoding import json_answer, to_json
from phase4_scheduler.server.protocol import ChatCompletionRequest, CompletionRequest


def test_iterators_become_lists_wherever_they_stand():
    inner = {"a": [1, None, 'quoted "', "é"], "empty": iter(())}
    content = {
        "first": iter([]),
        "rows": iter([inner, b'{"ready":1}', 2.5, iter("xy")]),
        "[": {"{": map(str, [1])},
    }
    expected = {
        "first": [],
        "rows": [{"a": [1, None, 'quoted "', "é"], "empty": []}, {"ready": 1}, 2.5, ["x", "y"]],
        "[": {"{": ["1"]},
    }
    assert to_json(content) == json.dumps(expected, ensure_ascii=False, separators=(",", ":")).encode()
    assert to_json("half a character: \ud800") == b'"half a character: ?"'
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"values": iter([float("nan")])})


@pytest.mark.parametrize("length", [0, 60])
def test_an_answer_that_takes_long_goes_out_while_it_is_made(monkeypatch, length):
    """Between two slices the others have a turn."""
    monkeypatch.setattr(encoding, "SLICE", length)
    made, turns = [], []
    items = (made.append(i) or i for i in range(100))

    async def other():
        while len(made) < 100:
            turns.append(1)
            await asyncio.sleep(0)

    async def body():
        task = asyncio.create_task(other())
        response = await json_answer({"items": items}, {"x": "y"})
        assert response.headers["x"] == "y" and response.headers["content-type"] == "application/json"
        if length:
            assert int(response.headers["content-length"]) == len(response.body)
            return response.body
        assert isinstance(response, StreamingResponse) and len(made) < 3
        whole = b"".join([chunk async for chunk in response.body_iterator])
        await task
        assert len(turns) > 100
        return whole

    assert asyncio.run(body()) == to_json({"items": list(range(100))})


@pytest.fixture
def spelled(monkeypatch) -> list[int]:
    """The tokens that were spelled so far; token 7 is spelled "<7>"."""
    tokens = []
    monkeypatch.setattr(calls, "spelled", lambda _, token: tokens.append(token) or f"<{token}>")
    monkeypatch.setattr(chat, "spelled", lambda _, token: f"<{token}>")
    return tokens


def call_of(kind, request):
    return kind(SimpleNamespace(engine=MagicMock(), name="tales"), request)


def test_the_answers_to_a_prompt_share_the_report_on_it_which_is_made_when_it_is_sent(spelled):
    report = [None, TokenLogprobs({2: -0.5, 9: -0.25}), TokenLogprobs({3: -1e30})]
    report[1].rank, report[2].rank = 2, 77
    call = call_of(Completion, CompletionRequest(prompt=[1, 2, 3]))
    answers = [call.described(report) for _ in range(50)]
    assert spelled == []
    two, nine, three = (
        {"logprob": value, "rank": rank, "decoded_token": f"<{token}>"}
        for token, value, rank in ((2, -0.5, 2), (9, -0.25, 1), (3, -9999.0, 77))
    )
    assert json.loads(to_json(answers)) == [[None, {"2": two, "9": nine}, {"3": three}]] * 50
    assert spelled == [2, 9, 3]


def test_log_probabilities_of_an_answer_are_made_when_they_are_sent(spelled):
    asked = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], logprobs=True, top_logprobs=2)
    part = CompletionOutput(0, [5], "five", RequestMetrics(0.0))
    part.logprobs = [TokenLogprobs({5: -0.5, 6: -0.75})]
    content = call_of(chat.Chat, asked).logprobs(part)
    assert spelled == []
    five, six = (
        {"token": f"<{i}>", "logprob": p, "bytes": list(b"<%d>" % i)} for i, p in ((5, -0.5), (6, -0.75))
    )
    assert json.loads(to_json(content)) == {"content": [five | {"top_logprobs": [five, six]}]}
