"""Ctrl-C: at a moment that suits, and never a traceback.

Python raises KeyboardInterrupt wherever it happens to be. In the middle of an import that is a bad place: libraries
swallow it, or keep half a module, and torch takes seconds to import. There is nothing to put in order then, so a
program of the course ends at once. Elsewhere it unwinds as usual, and `labkit/terminal.py` says "stopped".
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
STOPPED = 130
"""The exit code of a program that Ctrl-C ended: 128 + SIGINT, as shells have it."""


def is_a_program() -> bool:
    """Whether this process runs `lab` or a script at the top of a phase, and not a notebook or a test with parts of them."""
    if sys.argv[0] == "-m":  # Python says no more before the module is found
        module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
        return module in ("labkit.command", "exercises.publishing.commands", "exercises.classroom.commands")
    program = Path(sys.argv[0]).resolve()
    is_script = program.parent.name.startswith("phase") and program.parent.parent == ROOT
    return program.stem == "lab" or (is_script and program.suffix == ".py")


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """What Ctrl-C does before a program has begun and after it has ended."""
    os.write(2, b"stopped\n")
    os._exit(STOPPED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    where = frame
    while where:
        if where.f_code.co_filename.startswith("<frozen importlib"):
            end_at_once(number, frame)
        where = where.f_back
    raise KeyboardInterrupt


@contextmanager
def ctrl_c_unwinds() -> Iterator[None]:
    """A Ctrl-C inside raises KeyboardInterrupt, except while something is imported."""
    if signal.getsignal(signal.SIGINT) is not end_at_once:  # not a program of its own, or Ctrl-C is ignored
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, end_at_once)


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """A Ctrl-C inside takes effect at the end. A second one takes effect at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread ever hears of it
        return
    usual = signal.getsignal(signal.SIGINT)
    if not callable(usual):  # it is ignored
        yield
        return
    came = []

    def note(number, frame) -> None:
        if came:
            usual(number, frame)
        came.append((number, frame))

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if came:
        usual(*came[0])


def in_its_own_process(*command: str, **settings: Any) -> int:
    """Run Python, and return its exit code. Ctrl-C is for that process, which says so and ends."""
    try:
        with ctrl_c_waits():
            return subprocess.run([sys.executable, *command], **settings).returncode
    except KeyboardInterrupt:
        return STOPPED
