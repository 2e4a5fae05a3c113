"""The engine process between the steps, and at its end."""

import gc
import multiprocessing
import os
import signal
from types import SimpleNamespace

import pytest

from phase4_scheduler.server.async_engine import AsyncEngine
from phase4_scheduler.server.engine_process import (
    MOST_COMMANDS,
    EngineLimits,
    Finish,
    run_engine,
    take_commands,
)


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


def test_a_second_sigterm_does_not_cut_off_the_end_of_the_engine(monkeypatch):
    """A terminal sends one to all processes, and the API process another one: temporary files of the ranks would stay."""
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ended = []

    def terminate(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    def shutdown():
        terminate()
        ended.append("in order")

    monkeypatch.setattr(EngineLimits, "of", terminate)
    core = SimpleNamespace(shutdown=shutdown)
    args = SimpleNamespace(start=lambda tell: core, enable_mfu_metrics=False, record_steps=False)
    try:
        with pytest.raises(SystemExit):
            run_engine(SimpleNamespace(send=print), args)
    finally:
        gc.unfreeze()
        for number, action in usual.items():
            signal.signal(number, action)
    assert ended == ["in order"]
