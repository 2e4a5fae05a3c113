"""The engine process between the steps, and at its end."""

import asyncio
import gc
import importlib
import multiprocessing
import os
import signal
from types import SimpleNamespace

import pytest

from labkit import interrupts
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine.core import EngineDeadError
from phase4_scheduler.engine.output_processor import OutputProcessor
from phase4_scheduler.engine.request import Request
from phase4_scheduler.server.async_engine import AsyncEngine
from phase4_scheduler.server.engine_process import (
    MOST_COMMANDS,
    EngineLimits,
    Finish,
    run_engine,
    spare_collections,
    take_commands,
)
from phase4_scheduler.server.launch import make_server, new_event_loop


def test_a_long_text_is_tokenised_without_a_copy_of_the_server():
    """To copy a process of 500 MB takes 30 ms, in which no stream goes on. uvloop's subprocesses begin with a copy."""
    engine, text, copies = make_server("tales").engine, "Once upon a time " * 5000, []
    os.register_at_fork(before=lambda: copies.append(1))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert runner.run(engine.encode(text)) == engine.tokenizer.encode(text, "all")
    assert not copies


def test_no_full_collection_of_garbage_while_thousands_of_requests_come():
    """Each would look at all of them: 30 ms for 16,384, and there were ten."""
    usual, full = gc.get_threshold(), []

    def note(phase, info):
        if phase == "start" and info["generation"] == 2:
            full.append(1)

    try:
        spare_collections()
        gc.callbacks.append(note)
        requests = [Request(str(i), [1], SamplingParams()) for i in range(16_384)]
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*usual)
        gc.unfreeze()
    assert len(requests) == 16_384 and not full


def test_thousands_of_commands_reach_the_engine_in_order_over_many_steps():
    """Else all streams would wait until 16,384 answers to one prompt have begun."""
    engine = AsyncEngine.__new__(AsyncEngine)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    commands = [Finish(str(number), "abort") for number in range(5 * MOST_COMMANDS)]
    engine._write(theirs, commands)
    engine._write(theirs, [Finish("last", "stop")])
    steps = [take_commands(ours, busy=False), *(take_commands(ours, busy=True) for _ in range(7))]
    assert [len(step) for step in steps] == [MOST_COMMANDS] * 5 + [1, 0, 0]
    assert [command for step in steps for command in step] == [*commands, Finish("last", "stop")]


def test_answers_that_nothing_will_read_are_not_made():
    """Thousands take half a second of the API process. Streams of others go on meanwhile, and the engine may die."""
    engine, made = AsyncEngine.__new__(AsyncEngine), []
    engine.dead, engine.max_num_queued_reqs, engine._commands = None, None, []
    engine._watchers, engine.tokenizer, engine._send_soon = set(), None, lambda: None
    engine.output_processor, engine.process = OutputProcessor(), SimpleNamespace(exitcode=9)
    request = Request("many", [1], SamplingParams(n=2 * MOST_COMMANDS - 1))
    make = request.for_answer
    request.for_answer = lambda i: made.append(i) or make(i)

    async def ask():
        asyncio.get_running_loop().call_soon(engine._die)
        await anext(engine.generate(request))

    with pytest.raises(EngineDeadError):
        asyncio.run(ask())
    assert len(made) == MOST_COMMANDS


@pytest.mark.parametrize("importing", [False, True], ids=["at a step", "at an import"])
def test_a_second_sigterm_does_not_cut_off_the_end_of_the_engine(monkeypatch, tmp_path, importing):
    """A terminal sends one to all processes, and the API process another one: temporary files of the ranks would stay."""
    (tmp_path / "imported_late.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(interrupts, "end_at_once", lambda *_: pytest.fail("ends without a clean-up"))
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ended = []

    def terminate(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    def shutdown():
        terminate()
        ended.append("in order")

    def import_late(*_):
        importlib.import_module("imported_late")

    monkeypatch.setattr(EngineLimits, "of", import_late if importing else terminate)
    core = SimpleNamespace(shutdown=shutdown)
    threshold = gc.get_threshold()
    args = SimpleNamespace(start=lambda tell: core, enable_mfu_metrics=False, record_steps=False)
    try:
        with pytest.raises(SystemExit):
            run_engine(SimpleNamespace(send=print), args)
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()
        for number, action in usual.items():
            signal.signal(number, action)
    assert ended == ["in order"]
