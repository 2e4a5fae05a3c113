"""Handles Ctrl-C and SIGTERM without a traceback.

Python raises KeyboardInterrupt at the current line. During an import, libraries catch the error or leave a module half
loaded, and torch takes seconds to import. So a program of the course removes its temporary folders and ends at once.
Elsewhere the program unwinds as usual, and `labkit/terminal.py` prints "stopped". SIGTERM, which
`kill` and `timeout` send, unwinds as well: temporary files are removed, and started processes end.
"""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
STOPPED = 130
"""The exit code of a program that Ctrl-C ended: 128 + SIGINT, as shells have it."""
CALLED_FROM_C = (os.path.join("llvmlite", "binding", "executionengine.py"), "weakref.py")
"""LLVM, while Numba compiles, and the memory manager ignore the exceptions of functions here. So the signal is sent again after 0.1 s."""


def is_a_program() -> bool:
    """Tell whether this process runs `lab` or a script at the top of a phase, and not a notebook or a test with parts of them."""
    if sys.argv[0] == "-m":  # sys.argv holds no more before the module is found
        module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
        return module in ("labkit.command", "exercises.publishing.commands", "exercises.classroom.commands")
    program = Path(sys.argv[0]).resolve()
    is_script = program.parent.name.startswith("phase") and program.parent.parent == ROOT
    return program.stem == "lab" or (is_script and program.suffix == ".py")


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """End the process: the action of Ctrl-C during an import, before a program has begun and after it has ended."""
    os.write(2, b"stopped\n")
    weakref.finalize._exitfunc()  # removes each `TemporaryDirectory`; `atexit` would also wait for other processes
    sockets = multiprocessing.current_process()._config.get("tempdir", "")  # of a fork server
    shutil.rmtree(sockets, ignore_errors=True)
    os._exit(128 + number)


def interrupt(number: int, frame: FrameType | None, unwinds_imports: bool = False) -> None:
    """Unwind with KeyboardInterrupt or SystemExit. During an import the process ends at once; a call from LLVM is left to end first.

    Args:
        unwinds_imports: during an import, too: there is something to clean up.
    """
    where = frame
    while where:
        if where.f_code.co_filename.startswith("<frozen importlib") and not unwinds_imports:
            end_at_once(number, frame)
        if where.f_code.co_filename.endswith(CALLED_FROM_C):
            threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
            return
        where = where.f_back
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the clean-up of the first one
    raise SystemExit(128 + number)


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt and SIGTERM raise SystemExit inside the block, except during imports."""
    # Notebooks and tests, and programs that ignore the signal, keep their handlers.
    usual = {
        number: action
        for number, action in ((signal.SIGINT, end_at_once), (signal.SIGTERM, signal.SIG_DFL))
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
    """Send this process a SIGTERM as soon as its parent process has ended, for whatever reason.

    For processes of `multiprocessing`: a killed parent cannot end its children.
    """
    parent = multiprocessing.parent_process()

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    if parent is not None:
        threading.Thread(target=wait, name="end with parent", daemon=True).start()


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Delay a Ctrl-C inside the block to its end. A second Ctrl-C takes effect at once."""
    usual = signal.getsignal(signal.SIGINT)
    # Only the main thread receives signals, and a program may ignore this one.
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
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
    """Run Python in a new process, and return its exit code. Ctrl-C stops that process, which prints "stopped"."""
    try:
        with ctrl_c_waits():
            return subprocess.run([sys.executable, *command], **settings).returncode
    except KeyboardInterrupt:
        return STOPPED


def become(*command: str) -> int:
    """Replace this process by Python with a command, which then receives the signals that are sent to this process.

    Windows cannot replace a process: there the command runs in a second process, whose exit code is returned.
    """
    if os.name == "posix":
        os.execv(sys.executable, [sys.executable, *command])
    return in_its_own_process(*command)
