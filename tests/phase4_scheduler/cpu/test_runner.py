"""The number of threads follows what other programs leave."""

import subprocess
import sys
import time

import psutil
import pytest
import torch

from phase4_scheduler.cpu import runner
from phase4_scheduler.engine import LLMEngine


@pytest.fixture
def threads(monkeypatch):
    """On a machine with four cores, all threads of which are ours. `threads.pass_time` sets the clocks."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    now = [0.0, 0.0, 0.0]
    monkeypatch.setattr(runner, "clocks", lambda: tuple(now))
    monkeypatch.setattr(runner.time, "perf_counter", lambda: now[0])
    found = runner.Threads()

    def pass_time(seconds, own, others):
        """own, others: cores that they keep busy."""
        for i, clock in enumerate((1, 4 - own - others, own)):
            now[i] += seconds * clock
        found.adjust()
        return torch.get_num_threads()

    found.pass_time = pass_time
    yield found
    torch.set_num_threads(before)


@pytest.mark.parametrize(("others", "expected"), [(0, 4), (0.25, 4), (0.35, 3), (1, 3), (1.35, 2), (3.6, 1)])
def test_others_keep_their_cores(threads, others, expected):
    assert threads.pass_time(1, 4 - others, others) == expected


def test_the_cores_come_back(threads):
    assert threads.pass_time(1, 2.5, 1.5) == 2
    assert threads.pass_time(1, 2, 1) == 3
    assert threads.pass_time(1, 3, 0) == 4


def test_what_others_do_while_we_are_idle_says_nothing(threads):
    assert threads.pass_time(60, 0.1, 3.9) == 4


def test_a_short_time_is_not_looked_at(threads):
    """The system's clocks count in hundredths of a second."""
    assert threads.pass_time(0.1, 2, 2) == 4
    assert threads.pass_time(0.15, 2, 2) == 2  # both together


def test_a_number_that_was_set_meanwhile_is_the_most(threads):
    torch.set_num_threads(2)
    assert threads.pass_time(1, 2, 0) == 2
    torch.set_num_threads(3)
    assert threads.pass_time(1, 2, 0) == 3


def test_shutdown_gives_the_threads_back():
    before = torch.get_num_threads()
    engine = LLMEngine.from_pretrained("tales", device="cpu", num_blocks=20, block_size=16)
    assert engine.core.runner.threads.most == before
    engine.core.runner.threads.most = before + 1
    engine.core.shutdown()
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(psutil.Process(), "cpu_affinity"), reason="this system pins no process")
def test_a_busy_program_takes_its_time_from_the_free_cores():
    """All on one core, so that the two of us share it: what is not free and not ours is the other program's."""
    mine = psutil.Process().cpu_affinity()
    psutil.Process().cpu_affinity(mine[:1])
    try:
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            before, end = runner.clocks(), time.perf_counter() + 0.5
            while time.perf_counter() < end:
                pass
            seconds, free, own = (now - then for now, then in zip(runner.clocks(), before, strict=True))
        finally:
            busy.kill()
            busy.wait()
    finally:
        psutil.Process().cpu_affinity(mine)
    assert 0 < own < seconds and free < seconds - own + 0.05
