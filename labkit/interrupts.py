"""Ctrl-C and SIGTERM: at a moment that suits, and never a traceback.

Python raises KeyboardInterrupt wherever it happens to be. In the middle of an import that is a bad place: libraries
swallow it, or keep half a module, and torch takes seconds to import. There is nothing to put in order then, so a
program of the course ends at once. Elsewhere it unwinds as usual, and `labkit/terminal.py` says "stopped". SIGTERM, which
`kill` and `timeout` send, unwinds as well: temporary files are removed, and the processes that were started end.
"""

import multiprocessing
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
CALLED_FROM_C = os.path.join("llvmlite", "binding", "executionengine.py")
"""LLVM calls these functions while Numba compiles, and ignores what they raise: the signal comes again a moment later."""


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
    os._exit(128 + number)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Unwind, once, from a moment that suits."""
    where = frame
    while where:
        if where.f_code.co_filename.startswith("<frozen importlib"):
            end_at_once(number, frame)
        if where.f_code.co_filename.endswith(CALLED_FROM_C):
            threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
            return
        where = where.f_back
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_IGN)  # a second one must not cut off what the first one has begun
    raise SystemExit(128 + number)


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Ctrl-C inside raises KeyboardInterrupt and SIGTERM raises SystemExit, except while something is imported."""
    usual = {signal.SIGINT: end_at_once, signal.SIGTERM: signal.SIG_DFL}
    # Nothing changes for what is not a program of its own, or ignores the signal.
    usual = {
        number: action
        for number, action in usual.items()
        if is_a_program() and signal.getsignal(number) == action
    }
    for number in usual:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, action in usual.items():
            signal.signal(number, action)


def end_with_parent() -> None:
    """Send this process a SIGTERM as soon as the process that started it has ended, in whatever way it ended.

    For processes of `multiprocessing`: a parent that is killed cannot end them.
    """
    parent = multiprocessing.parent_process()

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    if parent is not None:
        threading.Thread(target=wait, name="end with parent", daemon=True).start()


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
