"""Judging an answer in a process of its own, with a time limit, so that the learner's kernel survives it.

The child is a fork, so it has the learner's functions without any pickling. It sends back its verdict as JSON
through a pipe; no object of the answer comes with it. What the answer prints is passed on. Whatever the child
does, the learner's kernel goes on: an endless loop is stopped, a crash is told, processes that the answer starts
end with it (see keeper.py).

That is all it protects. An answer runs with the learner's rights, as any cell does: the files that it deletes are gone.

Where there is no fork (Windows) the answers are sent to a new process (far_process.py). What cannot be sent is judged in a
thread: an endless loop in Python is stopped there too; one in C is not, and a crash is not survived. INFERENCE_LAB_JUDGE=fork,
process or thread chooses one of the three ways.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import os
import secrets
import selectors
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from mmap import mmap
from typing import Any

from exercises.judging import far_process, keeper
from exercises.judging.answers import TimeUp, is_stub, name_the_trouble, stub_says, watch
from exercises.judging.comparing import verdict_of
from exercises.judging.own_work import AsItWas, borrowed
from exercises.judging.verdict import Exercise, NotAttempted, NotYet, Verdict

MOST_PRINTED = 20_000  # characters of what an answer prints
MORE_MEMORY = 2 << 30  # bytes that a grading may take beyond what the kernel has
UNHARMED = " Your notebook is unharmed."
BORROWED = (
    "{} would pass, of course: it is the course's own :-) Write yours, and look at that one afterwards. "
    "What the notebook itself imports above the check you may use."
)


def judge(exercise: Exercise, answers: Sequence[Any]) -> Verdict:
    """Grade in this process, without a time limit."""
    watch.start(answers)
    pythons_own, as_it_was = builtins.__dict__.copy(), AsItWas()
    note = trouble = None
    try:
        for name, answer in zip(exercise.asks, answers):
            if is_stub(answer):
                raise NotAttempted(stub_says(name, answer))
        if found := borrowed(exercise.name, tuple(answers)):
            raise NotYet("borrowed", BORROWED.format(found[0].upper() + found[1:]), about=found)
        note = exercise.grade(*answers)
    except (Exception, SystemExit) as error:
        trouble = error
    finally:  # no word of Python's is used before it is put back
        changed = [name for name, own in pythons_own.items() if builtins.__dict__.get(name) is not own]
        builtins.__dict__.update(pythons_own)
        touched = as_it_was.put_back()
    if changed:
        says = f"Your answer changed `{changed[0]}` for all of Python, the grader included. Leave `builtins` as it is."
        return Verdict("not yet", "changes-python", says, about=changed[0])
    if touched:
        says = (
            f"Your answer changed `{touched}`, which the grader needs as it is. An answer returns its result."
        )
        return Verdict("not yet", "changes-grader", says, about=touched)
    if trouble is not None:
        return verdict_of(name_the_trouble(trouble))
    return Verdict("correct", says=note if isinstance(note, str) else "")


def judge_safely(exercise: Exercise, answers: Sequence[Any], seconds: float | None = None) -> Verdict:
    """Grade in a process of its own. `seconds`: the time limit."""
    seconds = exercise.seconds if seconds is None else seconds
    way = os.environ.get("INFERENCE_LAB_JUDGE") or ("fork" if hasattr(os, "fork") else "process")
    if way == "fork":
        return _judge_in_child(exercise, answers, seconds)
    if way == "process" and (sent := far_process.packed(exercise, answers)):
        return far_process.judge_far(sent, seconds, _Printed(), _still_running(seconds), _died)
    return _judge_in_thread(exercise, answers, seconds)


def _still_running(seconds: float) -> Verdict:
    return Verdict(
        "not yet",
        "endless",
        f"Your answer still ran after {seconds:g} s, so it was stopped. Look for a loop that never ends: "
        "does what its condition looks at change in every round?",
    )


# ------------------------------------------------------------------ in a child process


def _judge_in_child(exercise: Exercise, answers: Sequence[Any], seconds: float) -> Verdict:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # or the child would print what waits here once more
    verdict_from, verdict_to = os.pipe()
    print_from, print_to = os.pipe()
    seal = secrets.token_bytes(16)  # only the grader puts it before a verdict
    board = mmap(-1, 4096)  # both processes see it: what the grader is calling right now
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # fork beside the kernel's threads: see _be_a_child
        pid, tell = keeper.fork_kept()
    if pid == 0:
        code = 1
        try:
            os.close(verdict_from)
            os.close(print_from)
            _be_a_child(print_to)
            signal.setitimer(signal.ITIMER_REAL, seconds + 2)  # should the parent be gone by then
            watch.board = board
            verdict = judge(exercise, answers)
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            with os.fdopen(verdict_to, "wb") as pipe:
                pipe.write(verdict.sealed(seal))
            code = 0
        finally:
            os._exit(code)  # no atexit, no flushing of the kernel's sockets
    os.close(verdict_to)
    os.close(print_to)
    verdict = _await_child(pid, tell, verdict_from, print_from, seconds, seal)
    called = board[:].partition(b"\0")[0].decode(errors="ignore")  # it never came back
    return replace(verdict, tried=verdict.tried or called)


def _be_a_child(print_to: int) -> None:
    """Make a fork of a Jupyter kernel harmless: own output, one thread, bounded memory."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(print_to, 1)
    os.dup2(print_to, 2)
    sys.stdout = sys.stderr = os.fdopen(
        1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False
    )
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if "IPython" in sys.modules:
        shell = sys.modules["IPython"].get_ipython()
        if shell is not None:  # the kernel's sockets belong to the parent
            shell.display_pub.publish = _print_instead
            shell.ask_exit = sys.exit  # what quit() calls: it asks the kernel to end, and returns
    calm_down()


def calm_down() -> None:
    """For a process in which an answer is to run: nobody to ask, one thread, bounded memory."""
    import faulthandler

    faulthandler.disable()  # its dump would be printed as if the answer had
    builtins.input = _no_input
    if "torch" in sys.modules:
        # The threads of OpenMP's pool did not come along; with one thread none waits for them.
        sys.modules["torch"].set_num_threads(1)
    if "phase3_paged_attention.paging" in sys.modules:
        # Numba's threads end a forked process. Without its kernel, caches gather with torch.
        sys.modules["phase3_paged_attention.paging"].switch_off_compiled_kernel()
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm") as file:
            now = int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")  # without code and mapped files
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = now + MORE_MEMORY
        if hard == resource.RLIM_INFINITY or wanted < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _no_input(prompt: object = "") -> str:
    raise RuntimeError("input() asks a person, and none is there: an answer gets its values as arguments")


def _print_instead(data: Any = None, *_: Any, **__: Any) -> None:
    print((data or {}).get("text/plain", ""))


def _await_child(
    pid: int, tell: int, verdict_from: int, print_from: int, seconds: float, seal: bytes
) -> Verdict:
    deadline = time.monotonic() + seconds
    told, printed = bytearray(), _Printed()
    open_pipes = {verdict_from, print_from}
    status = None
    try:
        while status is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return _still_running(seconds)
            _read_ready(open_pipes, verdict_from, told, printed, min(left, 0.05 if open_pipes else 0.005))
            done, code = os.waitpid(pid, os.WNOHANG)
            status = code if done else None
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)  # without a keeper: what the answer has started must print no more
        while _read_ready(open_pipes, verdict_from, told, printed, 0):  # what still lies in the pipes
            pass
    finally:  # also when the learner interrupts: nothing of the child is left behind
        if status is None:
            keeper.end(pid, tell)
        printed.end()
        for pipe in (tell, verdict_from, print_from):
            os.close(pipe)
    return Verdict.unsealed(bytes(told), seal) or _died(os.waitstatus_to_exitcode(status))


def _read_ready(
    open_pipes: set[int], verdict_from: int, told: bytearray, printed: _Printed, wait: float
) -> bool:
    """Take what has come. False if nothing has."""
    if not open_pipes:
        time.sleep(wait)
        return False
    with selectors.DefaultSelector() as selector:  # select.select knows no pipe above number 1023
        for pipe in open_pipes:
            selector.register(pipe, selectors.EVENT_READ)
        ready = [key.fd for key, _ in selector.select(wait)]
    for pipe in ready:
        data = os.read(pipe, 65536)
        if not data:
            open_pipes.discard(pipe)
        elif pipe == verdict_from:
            told += data
        else:
            printed.add(data)
    return bool(ready)


class _Printed:
    """What the answer prints, passed on as it comes, up to a length."""

    def __init__(self) -> None:
        import codecs

        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.left = MOST_PRINTED
        self.more = 0

    def add(self, data: bytes) -> None:
        text = self.decoder.decode(data)
        shown, rest = text[: self.left], text[self.left :]
        self.left -= len(shown)
        self.more += len(rest)
        if shown:
            sys.stdout.write(shown)
            sys.stdout.flush()

    def end(self) -> None:
        if self.more:
            print(f"\n... and {self.more:,} more characters that your answer printed")


def _died(code: int) -> Verdict:
    """By the exit code: below 0 the signal that ended it; on Windows the large ones are crashes."""
    if code < 0 or code >= 0xC0000000:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"code {code:#x}" if code > 0 else f"signal {-code}"
        why = " The system does that, often because memory has run out." if name == "SIGKILL" else ""
        return Verdict(
            "not yet",
            "crashes-python",
            f"Your answer crashed Python itself ({name}).{why}{UNHARMED}",
        )
    return Verdict(
        "not yet",
        "ends-python",
        f"Your answer ended Python itself (exit code {code}). An answer returns its result.{UNHARMED}",
    )


# ------------------------------------------------------------------ in a thread


def _judge_in_thread(exercise: Exercise, answers: Sequence[Any], seconds: float) -> Verdict:
    out: list[Verdict] = []

    def work() -> None:
        with contextlib.suppress(TimeUp):
            out.append(judge(exercise, answers))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    try:
        while thread.is_alive() and time.monotonic() < deadline:
            thread.join(0.1)  # on Windows a long join hears no Ctrl-C
    finally:  # also when the learner interrupts
        for _ in range(20):  # an answer may catch it and go on: ask again
            if not thread.is_alive():
                break
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TimeUp)
            )
            thread.join(0.05)
    return out[0] if out else _still_running(seconds)
