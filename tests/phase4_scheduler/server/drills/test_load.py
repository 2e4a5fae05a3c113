"""The prompts of users, and middleware that goes wrong."""

import asyncio
import random

import pytest

from labkit.errors import LabError
from phase4_scheduler.server.drills.bad_middleware import AskTheOldDirectory, KeepTraces
from phase4_scheduler.server.drills.load import dated, documents, plain
from phase4_scheduler.server.launch import find_middleware


def test_prompts_are_as_long_as_asked_and_no_two_alike():
    prompts = [plain(40)(random.Random(seed)) for seed in range(20)]
    assert {len(prompt.split()) for prompt in prompts} == {40}
    assert len(set(prompts)) == 20


def test_a_document_begins_alike_each_time_and_a_date_in_front_spoils_that():
    rng = random.Random(0)
    beginnings = {documents(6)(rng)[:400] for _ in range(100)}
    assert len(beginnings) == 6
    date, rest = dated(6)(rng).split(": ")
    assert float(date) > 1e9 and rest[:400] in beginnings


def test_middleware_is_found_by_its_import_path():
    path = "phase4_scheduler.server.drills.bad_middleware.KeepTraces"
    assert find_middleware(path) is KeepTraces
    for wrong in ("", "KeepTraces", path + "s", "phase4_scheduler.no.such.Module"):
        with pytest.raises(LabError, match="no middleware"):
            find_middleware(wrong)


def test_who_waits_without_await_gives_nobody_a_turn(monkeypatch):
    """While the look-up runs no other coroutine does; and only calls of the API are looked up."""
    order = []

    async def app(scope, receive, send):
        order.append(scope["path"])

    def sleep(seconds):
        order.append("looked up")

    monkeypatch.setattr("phase4_scheduler.server.drills.bad_middleware.time.sleep", sleep)
    around = AskTheOldDirectory(app)

    async def two_calls():
        paths = ("/v1/completions", "/metrics")
        await asyncio.gather(*(around({"type": "http", "path": path}, None, None) for path in paths))

    asyncio.run(two_calls())
    assert order == ["looked up", "/v1/completions", "/metrics"]


def test_traces_are_kept_up_to_a_limit():
    async def app(scope, receive, send):
        pass

    keeper = KeepTraces(app)
    keeper.TRACE_BYTES = 10

    async def calls():
        for _ in range(100):
            await keeper({"type": "http", "path": "/v1/completions"}, None, None)
        await keeper({"type": "http", "path": "/metrics"}, None, None)

    asyncio.run(calls())
    assert [len(trace) for trace in keeper.traces] == [10] * 75
