"""Judging an answer in a process of its own, with a time limit, so that the learner's kernel survives it.

The process is a fork, so it has the learner's functions without any pickling. What the answer prints is passed on; of its
results only texts come back. An endless loop is stopped, a crash is told, memory is bounded. On Linux the kernel refuses to start
another process (`seccomp`), so nothing of the answer lives on; on macOS what stays in its process group ends with it.

That is all it protects. An answer runs with the learner's rights, as any cell does: the files that it deletes are gone.
`lab grade` puts more around it: see exercises/classroom/room.py.

Windows has no fork: there the work is sent to a new Python process (worker.py), which takes some seconds more. Its memory is not
bounded. What cannot be sent is judged in this process, without a time limit. INFERENCE_LAB_JUDGE=process chooses that way.
"""

from __future__ import annotations

import builtins
import codecs
import contextlib
import ctypes
import json
import linecache
import os
import platform
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from mmap import mmap
from pathlib import Path
from typing import Any

from exercises.judging.answers import is_stub, name_the_trouble, stub_says, watch
from exercises.judging.comparing import verdict_of
from exercises.judging.source_check import borrowed
from exercises.judging.verdict import Exercise, NotAttempted, NotYet, Verdict
from labkit.paths import ROOT

MOST_PRINTED = 20_000  # characters of what an answer prints
MORE_MEMORY = 2 << 30  # bytes that a process may take beyond what it had
BOARD = 4096  # bytes of shared memory for the call that runs right now
UNHARMED = " Your notebook is unharmed."
BORROWED = (
    "{} would pass, of course: it is the course's own :-) Write yours, and look at that one afterwards. "
    "What the notebook itself imports above the check you may use."
)


def judge(exercise: Exercise, answers: Sequence[Any], check_source: bool = True) -> Verdict:
    """Grade in this process, without a time limit."""
    watch.start(answers)
    try:
        for name, answer in zip(exercise.asks, answers):
            if is_stub(answer):
                raise NotAttempted(stub_says(name, answer))
        if check_source and (found := borrowed(exercise.name, tuple(answers))):
            raise NotYet("borrowed", BORROWED.format(found[0].upper() + found[1:]), about=found)
        note = exercise.grade(*answers)
    except (Exception, SystemExit) as error:
        return verdict_of(name_the_trouble(error))
    return Verdict("correct", says=note if isinstance(note, str) else "")


def judge_safely(exercise: Exercise, answers: Sequence[Any], seconds: float | None = None) -> Verdict:
    """Grade in a process of its own. `seconds`: the time limit."""
    seconds = exercise.seconds if seconds is None else seconds
    work = partial(_judged, exercise, tuple(answers))
    with _Printed() as printed:
        told, code, called = run_apart(work, seconds, printed.add)
    try:
        return Verdict(**json.loads(told)) if code == 0 else died(code, seconds, called)
    except (ValueError, TypeError):  # the answer closed the pipe, or wrote into it
        return died(0, seconds, called)


def _judged(exercise: Exercise, answers: tuple[Any, ...]) -> bytes:
    return json.dumps(asdict(judge(exercise, answers))).encode()


def died(code: int | None, seconds: float, called: str = "") -> Verdict:
    """By the exit code: None if time was up, below 0 the signal that ended it; on Windows the large ones are crashes."""
    if code is None:
        says = (
            f"Your answer still ran after {seconds:g} s, so it was stopped. Look for a loop that never ends: "
            "does what its condition looks at change in every round?"
        )
        return Verdict("not yet", "endless", says, called)
    if code < 0 or code >= 0xC0000000:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"code {code:#x}" if code > 0 else f"signal {-code}"
        why = " The system does that, often because memory has run out." if name == "SIGKILL" else ""
        return Verdict(
            "not yet", "crashes-python", f"Your answer crashed Python itself ({name}).{why}{UNHARMED}", called
        )
    says = f"Your answer ended Python itself (exit code {code}). An answer returns its result.{UNHARMED}"
    return Verdict("not yet", "ends-python", says, called)


# ------------------------------------------------------------------ a process of its own

Told = tuple[
    bytes, int | None, str
]  # what the work returned; exit code, None if time was up; the call that was running


def run_apart(
    work: Callable[[], bytes],
    seconds: float,
    printed: Callable[[bytes], None] = lambda data: None,
    prepare: Callable[[], None] | None = None,
    at_most: int = 1_000_000,
    until: int | None = None,
) -> Told:
    """Do the work in a process of its own, and end that process.

    Args:
        printed: takes what the work prints.
        prepare: what the process does before the work; `calm_down` unless another is given. Not where there is no fork.
        at_most: bytes of the result that are read.
        until: a file descriptor; when it can be read the process is ended, and SystemExit raised.
    """
    way = os.environ.get("INFERENCE_LAB_JUDGE") or ("fork" if hasattr(os, "fork") else "process")
    if way == "process":
        return _in_a_new_python(work, seconds, printed)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # or the child would print what waits here once more
    told_from, told_to = os.pipe()
    print_from, print_to = os.pipe()
    board = mmap(-1, BOARD)  # both processes see it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside the kernel's threads: see calm_down
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)  # out of reach of Ctrl-C
            signal.setitimer(signal.ITIMER_REAL, seconds + 2)  # should the parent be gone by then
            watch.board = board
            _own_streams(print_to)
            (prepare or calm_down)()
            result = work()
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            with os.fdopen(told_to, "wb") as pipe:
                pipe.write(result)
            code = 0
        finally:
            os._exit(code)  # no atexit, no flushing of the kernel's sockets
    os.close(told_to)
    os.close(print_to)
    told, code = bytearray(), None

    def take(data: bytes) -> None:
        told.extend(data[: max(0, at_most - len(told))])

    try:
        code = _await(pid, {told_from: take, print_from: printed}, time.monotonic() + seconds, until)
    finally:  # also when the learner interrupts
        os.close(told_from)
        os.close(print_from)
    return bytes(told), code, board[:].partition(b"\0")[0].decode(errors="ignore")


def _await(
    pid: int, pipes: dict[int, Callable[[bytes], None]], deadline: float, until: int | None
) -> int | None:
    """Read until the process has ended. Its exit code, or None if it had to be ended."""
    status = None
    with selectors.DefaultSelector() as selector:  # select.select knows no pipe above number 1023
        for pipe in (*pipes, *([] if until is None else [until])):
            selector.register(pipe, selectors.EVENT_READ)

        def read_ready(wait: float) -> bool:
            ready = [key.fd for key, _ in selector.select(wait)]
            if until in ready:
                raise SystemExit("not needed any more")
            for pipe in ready:
                if data := os.read(pipe, 65536):
                    pipes[pipe](data)
                else:
                    selector.unregister(pipe)
            return bool(ready)

        try:
            while status is None and (left := deadline - time.monotonic()) > 0:
                read_ready(min(left, 0.05 if set(selector.get_map()) - {until} else 0.002))
                done, ended = os.waitpid(pid, os.WNOHANG)
                status = ended if done else None
            while status is not None and read_ready(0):  # what still lies in the pipes
                pass
        finally:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)  # what the answer has started, too
            if status is None:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return None if status is None else os.waitstatus_to_exitcode(status)


def _own_streams(print_to: int) -> None:
    """Leave the parent's streams and files alone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nowhere, 0), (print_to, 1), (print_to, 2)):
        os.dup2(source, target)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.stderr = os.fdopen(
        1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False
    )
    if "IPython" in sys.modules:
        shell = sys.modules["IPython"].get_ipython()
        if shell is not None:  # the kernel's sockets belong to the parent
            shell.display_pub.publish = _print_instead
            shell.ask_exit = sys.exit  # what quit() calls: it asks the kernel to end, and returns


def calm_down() -> None:
    """For a process in which an answer runs: no questions, one thread, bounded memory, no other processes."""
    import faulthandler

    faulthandler.disable()  # its dump would be printed as if the answer had
    builtins.input = _no_input
    if "torch" in sys.modules:
        # The threads of OpenMP's pool did not come along; with one thread none waits for them.
        sys.modules["torch"].set_num_threads(1)
    if "phase3_paged_attention.paging" in sys.modules:
        # Numba's threads end a forked process. Without its kernel, caches gather with torch.
        sys.modules["phase3_paged_attention.paging"].switch_off_compiled_kernel()
    limit_memory()
    refuse_new_processes()


def _no_input(prompt: object = "") -> str:
    raise RuntimeError("input() asks a person, and none is there: an answer gets its values as arguments")


def _print_instead(data: Any = None, *_: Any, **__: Any) -> None:
    print((data or {}).get("text/plain", ""))


def limit_memory() -> None:
    """Bound what this process may take beyond what it has; Linux only."""
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/statm") as file:
        now = int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")  # without code and mapped files
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or now + MORE_MEMORY < soft:
        resource.setrlimit(resource.RLIMIT_DATA, (now + MORE_MEMORY, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# By machine: the number that the kernel knows it by; system calls that start processes, reach into others, or leave namespaces.
SYSTEM_CALLS = {
    "x86_64": (0xC000003E, 56, (57, 58, 59, 322, 101, 310, 311, 272, 308)),
    "aarch64": (0xC00000B7, 220, (221, 281, 117, 270, 271, 97, 268)),
}
CLONE3, CLONE_THREAD = 435, 0x10000
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000  # what a filter returns; REFUSE | errno


def refuse_new_processes() -> None:
    """From here on the kernel refuses to start a process or another program: "Operation not permitted". Linux only.

    A seccomp filter (man 2 seccomp). clone is allowed for threads. clone3 hides its flags from filters, so it "does not exist",
    and the C library falls back to clone.
    """
    if sys.platform != "linux" or platform.machine() not in SYSTEM_CALLS:
        return
    machine, clone, refused = SYSTEM_CALLS[platform.machine()]
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    program = [(load, 0, 0, 4), (equal, 1, 0, machine), (give, 0, 0, KILL), (load, 0, 0, 0)]
    program += [(at_least, 0, 1, 0x40000000), (give, 0, 0, KILL)]  # x86's second table of calls
    for number in refused:
        program += [(equal, 0, 1, number), (give, 0, 0, REFUSE | 1)]
    program += [(equal, 0, 1, CLONE3), (give, 0, 0, REFUSE | 38), (equal, 0, 3, clone), (load, 0, 0, 16)]
    program += [(any_bit, 1, 0, CLONE_THREAD), (give, 0, 0, REFUSE | 1), (give, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    zero = ctypes.c_ulong(0)
    prctl(38, ctypes.c_ulong(1), zero, zero, zero)  # no new privileges: what a filter asks for
    if prctl(22, ctypes.c_ulong(2), header, zero, zero):  # a kernel without seccomp
        return


class _Printed:
    """What the answer prints, passed on as it comes, up to a length."""

    def __init__(self) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.left, self.more = MOST_PRINTED, 0

    def add(self, data: bytes) -> None:
        text = self.decoder.decode(data)
        shown, rest = text[: self.left], text[self.left :]
        self.left -= len(shown)
        self.more += len(rest)
        if shown:
            sys.stdout.write(shown)
            sys.stdout.flush()

    def __enter__(self) -> _Printed:
        return self

    def __exit__(self, *_: object) -> None:
        if self.more:
            print(f"\n... and {self.more:,} more characters that your answer printed")


# ------------------------------------------------------------------ where there is no fork


def _in_a_new_python(work: Callable[[], bytes], seconds: float, printed: Callable[[bytes], None]) -> Told:
    """The work is sent to a new Python; its result comes back in a file."""
    import cloudpickle

    lines = linecache.cache.items()
    cells = {n: entry for n, entry in lines if len(entry) == 4 and ("ipykernel_" in n or n.startswith("<"))}
    try:
        sent = cloudpickle.dumps((work, cells))
    except Exception:  # an answer may hold an open file, a lock, a generator
        return work(), 0, ""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "board").write_bytes(bytes(BOARD))
        (folder / "work").write_bytes(sent)
        with (folder / "printed").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "exercises.judging.worker", name],
                env=os.environ | {"PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            until = time.monotonic() + 120  # to start, on a slow and busy machine
            begun = False
            while process.poll() is None and time.monotonic() < until:
                if not begun and (folder / "started").exists():
                    begun, until = True, time.monotonic() + seconds
                time.sleep(0.02)
            code = process.poll()
        finally:
            process.kill()
            process.wait()
        with (folder / "printed").open("rb") as file:
            printed(file.read(10 * MOST_PRINTED))
        called = (folder / "board").read_bytes().partition(b"\0")[0].decode(errors="ignore")
        result = folder / "result"
        return result.read_bytes() if result.is_file() else b"", code, called
