"""The number of threads follows what other programs leave."""

import subprocess
import sys
import time

import psutil
import pytest
import torch

from phase4_scheduler.cpu import runner


@pytest.fixture
def threads(monkeypatch):
    """On a machine with four cores, all threads of which are ours. `threads.pass_time` sets the clocks."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    now = [0.0, 0.0, 0.0]
    monkeypatch.setattr(runner, "clocks", lambda: tuple(now))
    monkeypatch.setattr(runner.time, "perf_counter", lambda: now[0])
    runner.threads_of_process.cache_clear()
    found = runner.Threads()

    def pass_time(seconds, own, others, num_tokens=1):
        """own, others: cores that they keep busy. num_tokens: of the step afterwards."""
        for i, clock in enumerate((1, 4 - own - others, own)):
            now[i] += seconds * clock
        found.adjust(num_tokens)
        return torch.get_num_threads()

    found.pass_time = pass_time
    yield found
    runner.threads_of_process.cache_clear()
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "times",
    [
        *([(1, 4 - others, others, left)] for others, left in ((0, 4), (0.25, 4), (0.35, 3), (1, 3), (1.35, 2), (3.6, 1))),
        [(1, 2.5, 1.5, 2), (1, 2, 1, 3), (1, 3, 0, 4)],  # the cores come back
        [(60, 0.1, 3.9, 4)],  # what others do while we are idle says nothing
        [(0.1, 2, 2, 4), (0.15, 2, 2, 2)],  # the clocks count in hundredths: a short time waits for the next one
    ],
)  # fmt: skip
def test_others_keep_their_cores(threads, times):
    """times: seconds, cores that we and that others keep busy in them, our threads afterwards."""
    for *spent, expected in times:
        assert threads.pass_time(*spent) == expected


def test_prompts_give_way_later(threads):
    """And not only in a step that counts anew."""
    assert threads.pass_time(1, 2, 0.6, num_tokens=500) == 4
    assert threads.pass_time(0, 0, 0) == 3
    assert threads.pass_time(0, 0, 0, num_tokens=500) == 4
    assert threads.pass_time(1, 2, 0.8, num_tokens=500) == 3


def test_a_number_that_was_set_meanwhile_is_the_most(threads):
    torch.set_num_threads(2)
    assert threads.pass_time(1, 2, 0) == 2
    torch.set_num_threads(3)
    assert threads.pass_time(1, 2, 0) == 3


def test_shutdown_gives_the_threads_back(tiny):
    before, core = torch.get_num_threads(), tiny.engine(num_blocks=20).core
    core.runner.threads.notice()
    assert core.runner.threads.most == before
    core.runner.threads.most = before + 1
    core.shutdown()
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)


def test_what_one_engine_has_set_is_no_limit_for_the_next(threads, tiny):
    """Neither for an engine that is made while another program takes cores, nor for one that steps beside the first."""
    engines = []
    for others, expected in ((3, 1), (2, 2), (0, 4)):
        engines.append(tiny.engine(num_blocks=20).core.runner.threads)
        for threads.adjust in [each.adjust for each in engines]:
            assert threads.pass_time(1, 4 - others, others) == expected


def test_shutdown_keeps_a_number_that_was_set_meanwhile(threads):
    threads.pass_time(1, 2, 2)
    torch.set_num_threads(3)
    threads.give_back()
    assert torch.get_num_threads() == 3


def test_cores_that_are_switched_off_have_no_times(monkeypatch):
    """The list then is shorter than the highest number of a core: a machine whose second threads per core are off."""
    times = psutil.cpu_times(percpu=True)[:1]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: times)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: [0, 2], raising=False)
    now, free, _ = runner.clocks()
    assert free == pytest.approx(now - times[0].user - times[0].system)


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
