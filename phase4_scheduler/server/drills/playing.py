"""Plays a drill: a healthy minute, a minute with the fault, a minute after the remedy. Server, users and fault are real."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import psutil

from phase4_scheduler.server.client import RunningServer, running_server, send_all
from phase4_scheduler.server.drills.evidence import Cause, Check, Moments
from phase4_scheduler.server.drills.load import Load, Users
from phase4_scheduler.server.drills.recording import Recording, Scraper

BUSY = "while True: pass"
ONE_CORE = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
MEMORY = """process_resident_memory_bytes{{process="api"}} {api}
process_resident_memory_bytes{{process="engine"}} {engine}
"""
"""vLLM's page does not show memory outside the KV cache. In a data centre the machine's exporter shows it."""


@dataclass(frozen=True)
class Fault:
    """A fault, as an operator meets it.

    Attributes:
        options: of `lab serve`: the server is deployed with these as well.
        users: the traffic from now on, in place of the usual one.
        busy_processes: programs per core that compute for themselves.
        usual: the users before and after the fault, in place of those of the drill.
        measured: the right answer is not put in but measured (`by_the_clients`).
    """

    options: tuple[str, ...] = ()
    users: tuple[Users, ...] | None = None
    busy_processes: int = 0
    usual: tuple[Users, ...] | None = None
    measured: bool = False


def by_the_clients(before: float, now: float) -> str:
    """The cause that the clients' seconds between two pieces of text show. (Halved bytes are worth it if they bring half of the
    predicted gain; drills.toml holds the same bounds.)
    """
    return "worth" if now < 0.75 * before else "slower" if now > 1.1 * before else "little"


@dataclass(frozen=True)
class Drill:
    """One of the seven questions.

    Attributes:
        question: the question of the drill. pager: the message that wakes the operator.
        figure: PromQL of the figure in question. alarms: at least one fires if something is wrong; if none fires,
            nothing is wrong.
        watch: what the dashboard shows: title -> PromQL.
        options, users: of the healthy server. causes: those that the learner chooses from.
        faults: by cause, the faults that can be put into the real server. The other causes are only plausible.
    """

    number: int
    question: str
    pager: str
    figure: str
    alarms: tuple[Check, ...]
    watch: dict[str, str]
    options: tuple[str, ...]
    users: tuple[Users, ...]
    causes: tuple[Cause, ...]
    faults: dict[str, Fault]

    def cause(self, name: str) -> Cause:
        return next(cause for cause in self.causes if cause.name == name)


@dataclass
class DrillRun:
    """The recording of a drill, with the times of its events.

    Attributes:
        window: seconds of the healthy, the faulty and the recovered minute alike.
        cause: the right answer; "nothing" for a run without a fault.
        healthy, faulty, recovered: the times at which these minutes end.
    """

    drill: Drill
    window: int
    cause: str
    recording: Recording = field(default_factory=Recording)
    healthy: float = 0.0
    faulty: float = 0.0
    recovered: float = 0.0

    @property
    def moments(self) -> Moments:
        return Moments(self.recording, self.healthy, self.faulty, self.window)

    @property
    def back_to_normal(self) -> Moments:
        return Moments(self.recording, self.healthy, self.recovered, self.window)


class Stage:
    """The server of a drill, its users and its scraper, while the `with` block is open.

    Args:
        fault: a name in `drill.faults`, or "nothing" for a run without a fault.
        seed: for prompts and pauses. window: seconds of a minute.
    """

    SETTLE = 0.25  # of a window, from a change to the window that is measured

    def __init__(self, drill: Drill, fault: str, seed: int, window: int) -> None:
        self.drill, self.run = drill, DrillRun(drill, window, fault)
        self.fault = drill.faults.get(fault, Fault())
        self.load = Load(seed)
        self._open, self._meanwhile = ExitStack(), ExitStack()
        self._scraped: RunningServer | None = None
        self._began = time.monotonic()

    def clock(self) -> float:
        return time.monotonic() - self._began

    def __enter__(self) -> "Stage":
        self.usual = self._open.enter_context(warm_server(*self.drill.options))
        self._open.enter_context(Scraper(self.run.recording, self._scrape, self.clock))
        self._open.enter_context(self.load)
        return self

    def __exit__(self, *_: object) -> None:
        self._scraped = None
        self.load.change("", ())  # no more requests
        with self._open:
            self._meanwhile.close()

    def _scrape(self) -> str | None:
        """The metrics page of the server that the users call."""
        server = self._scraped
        if server is None:
            return None
        # Its two processes. (A third one, of multiprocessing, only tidies up.)
        api = psutil.Process(server.process.pid)
        engine = max(child.memory_info().rss for child in api.children())
        return server.call("/metrics")[1] + MEMORY.format(api=api.memory_info().rss, engine=engine)

    # ------------------------------------------------------------------ the course of a run

    @property
    def users(self) -> tuple[Users, ...]:
        return self.fault.usual or self.drill.users

    def be_healthy(self) -> None:
        self.run.healthy = self._minute(self.usual, self.users)

    def break_down(self) -> None:
        """Put the fault in, and wait for a window."""
        run, fault, server = self.run, self.fault, self.usual
        before = self.load.mean_gap()
        if fault.options:  # a deployment: the new server starts beside the old one, then the users move over
            server = self._meanwhile.enter_context(warm_server(*self.drill.options, *fault.options))
        self._meanwhile.enter_context(busy_processes(fault.busy_processes))
        run.faulty = self._minute(server, fault.users or self.users)
        if fault.measured:
            run.cause = by_the_clients(before, self.load.mean_gap())

    def recover(self) -> None:
        """Take the fault out, and wait for a window."""
        self._scraped = self.usual
        self.load.change(self.usual.address, self.users)
        self._meanwhile.close()
        self.run.recovered = self._minute(self.usual, self.users)

    def _minute(self, server: RunningServer, users: tuple[Users, ...]) -> float:
        """Let these users call this server for a window. Returns the time at which it ends."""
        self._scraped = server
        self.load.change(server.address, users)
        time.sleep(self.SETTLE * self.run.window)
        self.load.gaps.clear()
        time.sleep(self.run.window)
        end = self.clock()
        time.sleep(Scraper.EVERY)  # a scrape that began before the end may not have arrived yet
        return end


@contextmanager
def warm_server(*options: str) -> Iterator[RunningServer]:
    """A server that has compiled its kernels. It computes on one core, because the API process and the users need another."""
    with running_server(*options, env=ONE_CORE) as server:
        asked = send_all(server.address, [{"prompt": "Once upon a time", "max_tokens": 4}] * 2)
        with ThreadPoolExecutor(1) as thread:  # in a notebook this one runs a loop already
            thread.submit(asyncio.run, asked).result()
        yield server


@contextmanager
def busy_processes(per_core: int) -> Iterator[None]:
    """Start programs that keep the cores busy."""
    running = [
        subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(per_core * (os.cpu_count() or 1))
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
