"""A night: a healthy minute, then a fault, then the remedy. The server, its users and what goes wrong are real."""

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
"""vLLM's page says nothing of memory outside the KV cache; in a data centre the machine's exporter does."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong, as an operator meets it.

    Attributes:
        options: of `lab serve`: the server is deployed with these as well.
        users: the traffic from now on, in place of the usual one.
        busy_processes: programs per core that compute for themselves.
        usual: the users of this night before, and after, in place of the drill's.
        measured: the right answer is not put in but measured (`by_the_clients`).
    """

    options: tuple[str, ...] = ()
    users: tuple[Users, ...] | None = None
    busy_processes: int = 0
    usual: tuple[Users, ...] | None = None
    measured: bool = False


def by_the_clients(before: float, now: float) -> str:
    """Which cause the seconds between two pieces of text say, as clients saw them. (Half of what halved bytes promise is
    worth it; the bounds are in nights.toml, too.)
    """
    return "worth" if now < 0.75 * before else "slower" if now > 1.1 * before else "little"


@dataclass(frozen=True)
class Drill:
    """One of the seven questions.

    Attributes:
        question: of the seven. pager: what wakes you.
        figure: PromQL of the figure that it is about. alarms: one of them rings if something is wrong; none: all
            is well.
        watch: what the dashboard shows: title -> PromQL.
        options, users: of the healthy server. causes: from which one has to choose.
        faults: by cause: those that can be put into the real server. The other causes are only plausible.
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
class Night:
    """What was recorded, and when what happened.

    Attributes:
        window: seconds of the healthy, the faulty and the recovered minute alike.
        cause: what the right answer is; "nothing" on a healthy night.
        healthy, faulty, recovered: the ends of these.
        began: when the fault was put in.
    """

    drill: Drill
    window: int
    cause: str
    recording: Recording = field(default_factory=Recording)
    healthy: float = 0.0
    began: float = 0.0
    faulty: float = 0.0
    recovered: float = 0.0

    @property
    def moments(self) -> Moments:
        return Moments(self.recording, self.healthy, self.faulty, self.window)

    @property
    def back_to_normal(self) -> Moments:
        return Moments(self.recording, self.healthy, self.recovered, self.window)


class Stage:
    """The server of a night, its users and its observer, while the block is open.

    Args:
        fault: of the drill's; "nothing" for a night without one.
        seed: for prompts and pauses. window: seconds of a minute.
    """

    SETTLE = 0.25  # of a window, from a change to the window that is measured

    def __init__(self, drill: Drill, fault: str, seed: int, window: int) -> None:
        self.drill, self.night = drill, Night(drill, window, fault)
        self.fault = drill.faults.get(fault, Fault())
        self.load = Load(seed)
        self._open, self._meanwhile = ExitStack(), ExitStack()
        self._scraped: RunningServer | None = None
        self._began = time.monotonic()

    def clock(self) -> float:
        return time.monotonic() - self._began

    def __enter__(self) -> "Stage":
        self.usual = self._open.enter_context(warm_server(*self.drill.options))
        self._open.enter_context(Scraper(self.night.recording, self._scrape, self.clock))
        self._open.enter_context(self.load)
        return self

    def __exit__(self, *_: object) -> None:
        self._scraped = None
        self.load.change("", ())  # no more requests
        with self._open:
            self._meanwhile.close()

    def _scrape(self) -> str | None:
        """The page of the server that the users call."""
        server = self._scraped
        if server is None:
            return None
        # Its two processes. (A third one, of multiprocessing, only tidies up.)
        api = psutil.Process(server.process.pid)
        engine = max(child.memory_info().rss for child in api.children())
        return server.call("/metrics")[1] + MEMORY.format(api=api.memory_info().rss, engine=engine)

    # ------------------------------------------------------------------ the course of a night

    @property
    def users(self) -> tuple[Users, ...]:
        return self.fault.usual or self.drill.users

    def be_healthy(self) -> None:
        self.night.healthy = self._minute(self.usual, self.users)

    def break_down(self) -> None:
        """Put the fault in, and let a window pass."""
        night, fault, server = self.night, self.fault, self.usual
        before = self.load.mean_gap()
        if fault.options:  # a deployment: the new server starts beside the old one, then the users move over
            server = self._meanwhile.enter_context(warm_server(*self.drill.options, *fault.options))
        self._meanwhile.enter_context(busy_processes(fault.busy_processes))
        night.began = self.clock()
        night.faulty = self._minute(server, fault.users or self.users)
        if fault.measured:
            night.cause = by_the_clients(before, self.load.mean_gap())

    def recover(self) -> None:
        """Take the fault out, and let a window pass."""
        self._scraped = self.usual
        self.load.change(self.usual.address, self.users)
        self._meanwhile.close()
        self.night.recovered = self._minute(self.usual, self.users)

    def _minute(self, server: RunningServer, users: tuple[Users, ...]) -> float:
        """Let these users call this server for a window. Returns its end."""
        self._scraped = server
        self.load.change(server.address, users)
        time.sleep(self.SETTLE * self.night.window)
        self.load.gaps.clear()
        time.sleep(self.night.window)
        end = self.clock()
        time.sleep(Scraper.EVERY)  # a page that was asked for before the end may still be on its way
        return end


@contextmanager
def warm_server(*options: str) -> Iterator[RunningServer]:
    """A server that has compiled what it compiles at its first requests. It computes on one core: the API process and the
    users need another.
    """
    with running_server(*options, env=ONE_CORE) as server:
        asked = send_all(server.address, [{"prompt": "Once upon a time", "max_tokens": 4}] * 2)
        with ThreadPoolExecutor(1) as thread:  # in a notebook this one runs a loop already
            thread.submit(asyncio.run, asked).result()
        yield server


@contextmanager
def busy_processes(per_core: int) -> Iterator[None]:
    """Other programs on the same cores."""
    running = [
        subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(per_core * (os.cpu_count() or 1))
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
