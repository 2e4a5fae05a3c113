"""The course's own client against the course's own server."""

import asyncio

import pytest

from labkit.errors import LabError
from phase4_scheduler.server.client import running_server, send_all


@pytest.mark.proof
def test_answers_come_in_the_order_of_the_requests():
    bodies = [{"prompt": "Once upon a time", "max_tokens": n, "ignore_eos": True} for n in (3, 9, 6)]
    with running_server() as server:
        answers = asyncio.run(send_all(server.address, [*bodies, {"prompt": "x", "max_tokens": 0}]))
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
