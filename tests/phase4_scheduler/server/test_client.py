"""The course's own client against the course's own server."""

import asyncio

import pytest

from labkit.errors import LabError
from phase4_scheduler.server.client import Answer, running_server, send_all, take


def test_chunks_of_both_endpoints_become_one_answer():
    answer = Answer(0.0)
    take(answer, {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
    take(answer, {"choices": [{"delta": {"content": "One"}, "finish_reason": None}]})
    take(answer, {"choices": [{"text": " day", "finish_reason": "length"}]})
    take(answer, {"choices": [], "usage": {"completion_tokens": 2}})
    assert (answer.text, len(answer.times), answer.finish_reason) == ("One day", 2, "length")
    assert answer.usage == {"completion_tokens": 2}
    take(answer, {"error": {"message": "the engine process has ended"}})
    assert answer.error == "the engine process has ended"


@pytest.mark.proof
def test_answers_come_in_the_order_of_the_requests():
    bodies = [{"prompt": "Once upon a time", "max_tokens": n, "ignore_eos": True} for n in (3, 9, 6)]
    with running_server() as server:
        answers = asyncio.run(send_all(server.address, [*bodies, {"prompt": "x", "max_tokens": 0}], 2))
        cut = asyncio.run(send_all(server.address, bodies[1:2], cut_after=2))
        assert server.call("/health")[0] == 200
        process = server.process
    assert [a.usage["completion_tokens"] for a in answers[:3]] == [3, 9, 6]
    assert all(a.status == 200 and a.error is None and a.sent < a.times[0] <= a.ended for a in answers[:3])
    assert answers[3].status == 400 and "max_tokens" in answers[3].error
    assert len(cut[0].times) == 2
    assert process.poll() is not None, "the server outlived its block"
    assert asyncio.run(send_all(server.address, bodies[:1]))[0].error.startswith("no connection")


@pytest.mark.proof
def test_a_server_that_does_not_start_is_told():
    with pytest.raises(LabError, match="did not start"), running_server("--max-num-seqs", "0"):
        pass
