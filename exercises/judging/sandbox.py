"""Judging an answer in a process of its own, with a time limit, so that the learner's kernel survives it.

The process is a fork, so it has the learner's functions without any pickling. What the answer prints is passed on; of its
results only texts come back. An endless loop is stopped, a crash is told, memory is bounded. On Linux the kernel refuses to start
another process (`seccomp`), so nothing of the answer lives on; on macOS what stays in its process group ends with it.

That is all it protects. An answer runs with the learner's rights, as any cell does: the files that it deletes are gone.
`lab grade` puts more around it: see exercises/classroom/room.py.

Windows has no fork: there an answer is judged in the kernel itself, and the learner stops an endless loop.
"""

import builtins
import contextlib
import ctypes
import json
import math
import multiprocessing
import os
import signal
import struct
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from mmap import mmap
from types import FunctionType
from typing import IO, Any, NamedTuple

from exercises.judging.answers import is_stub, name_the_trouble, stub_says, watch
from exercises.judging.comparing import verdict_of
from exercises.judging.judge import Exercise
from exercises.judging.verdict import NotAttempted, NotYet, Verdict

MOST_PRINTED = 20_000  # characters of what an answer prints
MORE_MEMORY = 2 << 30  # bytes that a process may take beyond what it had
LARGEST_FILE = 64_000_000  # bytes that it may write into a file, and of what it tells
PATIENCE = 3  # times the limit: so long may an answer take that waits, or computes on a busy machine
BOARD = 4096  # bytes of shared memory for the call that runs right now
UNHARMED = " Your notebook is unharmed."
BORROWED = "`{}` of {} would pass, of course: it is the course's own :-) Write yours, and look at that one afterwards."


def judge(exercise: Exercise, answers: Sequence[Any]) -> Verdict:
    """Grade in this process, without a time limit."""
    watch.start(answers)
    try:
        for name, answer in zip(exercise.asks, answers):
            if is_stub(answer):
                raise NotAttempted(stub_says(name, answer))
            from_here = isinstance(answer, (FunctionType, type)) and str(answer.__module__)
            if from_here and from_here.startswith(("phase", "exercises.")):
                raise NotYet("borrowed", BORROWED.format(answer.__qualname__, from_here))
        exercise.grade(*answers)
    except (Exception, SystemExit) as error:
        return verdict_of(name_the_trouble(error))
    return Verdict("correct", says=f"Right in {watch.cases} cases." if watch.cases else "")


def judge_safely(exercise: Exercise, answers: Sequence[Any]) -> Verdict:
    """Grade in a process of its own."""
    if not hasattr(os, "fork"):
        return judge(exercise, answers)

    def judged() -> bytes:
        return json.dumps(asdict(judge(exercise, answers))).encode()

    with tempfile.TemporaryFile() as printed:
        ended = run_apart(judged, exercise.seconds, printed)
        _pass_on(printed)
    try:
        return Verdict(**json.loads(ended.told)) if ended.code == 0 else died(ended)
    except (ValueError, TypeError):  # the answer ended the process, or wrote into that file
        return died(ended)


def _pass_on(printed: IO[bytes]) -> None:
    """What the answer printed, up to a length."""
    size = printed.seek(0, os.SEEK_END)
    printed.seek(0)
    text = printed.read(4 * MOST_PRINTED).decode("utf-8", "replace")[:MOST_PRINTED]
    sys.stdout.write(text)
    if (more := size - len(text.encode())) > 0:
        print(f"\n... and {more:,} more bytes that your answer printed")


class Ended(NamedTuple):
    """A process that `run_apart` has started, and what it told."""

    told: bytes
    code: int | None  # None if time was up; below 0: the signal that ended it
    called: str  # the call that was running
    limit: float  # seconds after which it was stopped, by the clock or of computing


def died(ended: Ended) -> Verdict:
    """A verdict on an answer whose process told none."""
    _, code, called, limit = ended
    if code is None:
        says = (
            f"Your answer still ran after {limit:g} s, so it was stopped. Look for a loop that never ends: "
            "does what its condition looks at change in every round?"
        )
        return Verdict("not yet", "endless", says, called)
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        why = " The system does that, often because memory has run out." if name == "SIGKILL" else ""
        return Verdict(
            "not yet", "crashes-python", f"Your answer crashed Python itself ({name}).{why}{UNHARMED}", called
        )
    says = f"Your answer ended Python itself (exit code {code}). An answer returns its result.{UNHARMED}"
    return Verdict("not yet", "ends-python", says, called)


# ------------------------------------------------------------------ a process of its own


def run_apart(
    work: Callable[[], bytes],
    seconds: float,
    printed: IO[bytes] | None = None,
    prepare: Callable[[], None] | None = None,
) -> Ended:
    """Do the work in a fork of this process, and end that process and what it started.

    Args:
        seconds: how long it may compute. It may take PATIENCE times as long.
        printed: the file that takes what the work prints; nothing is kept without one.
        prepare: what the process does before the work; `calm_down` unless another is given.
    """
    board = mmap(-1, BOARD)  # both processes see it
    in_memory = hasattr(os, "memfd_create")  # Linux: a room has no place to write in
    with os.fdopen(os.memfd_create("told"), "w+b") if in_memory else tempfile.TemporaryFile() as told_to:
        work_apart = work, seconds, told_to, printed, board, prepare or calm_down
        process = multiprocessing.get_context("fork").Process(target=_do, args=work_apart)
        with warnings.catch_warnings():
            # Of a fork beside the kernel's threads: see calm_down.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        # An answer may write into the pipe that `join` with a time limit looks at.
        late = threading.Event()
        stop = threading.Timer(PATIENCE * seconds, lambda: (late.set(), process.kill()))
        stop.daemon = True
        stop.start()
        try:
            process.join()
        finally:  # also when the learner interrupts
            stop.cancel()
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
        told_to.seek(0)
        told = told_to.read() if process.exitcode == 0 else b""
    limit = PATIENCE * seconds if late.is_set() else math.ceil(seconds)
    code = None if late.is_set() or process.exitcode == -signal.SIGXCPU else process.exitcode
    return Ended(told, code, board[:].partition(b"\0")[0].decode(errors="ignore"), limit)


def _do(work: Any, seconds: float, told_to: Any, printed: Any, board: mmap, prepare: Any) -> None:
    import resource

    code = 1
    try:
        os.setpgid(0, 0)  # out of reach of Ctrl-C
        signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds + 2)  # should the parent be gone by then
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 1))  # SIGXCPU
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
        watch.board = board
        _own_streams(printed)
        prepare()
        told = work()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        told_to.write(told)
        told_to.flush()
        code = 0
    finally:
        os._exit(code)  # no atexit, no flushing of the kernel's sockets


def _own_streams(printed: IO[bytes] | None) -> None:
    """Leave the parent's streams and files alone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    print_to = printed.fileno() if printed else nowhere
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
    with contextlib.suppress(OSError):
        refuse_new_processes()


def _no_input(prompt: object = "") -> str:
    raise RuntimeError("input() waits for a person: an answer gets its values as arguments")


def _print_instead(data: Any = None, *_: Any, **__: Any) -> None:
    print((data or {}).get("text/plain", ""))


def limit_memory(more: int | None = None) -> None:
    """Bound what this process may take beyond what it has, in bytes (MORE_MEMORY); Linux only."""
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/statm") as file:
        now = int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")  # without code and mapped files
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = now + (more or MORE_MEMORY)
    if soft == resource.RLIM_INFINITY or most < soft:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


REFUSED = "fork vfork execve execveat ptrace process_vm_readv process_vm_writev unshare setns"
ALLOW, REFUSE = 0x7FFF0000, 0x00050000  # what a filter returns; REFUSE | errno
CLONE_THREAD = 0x10000


def refuse_new_processes() -> None:
    """From here on the kernel refuses to start a process or another program: "Operation not permitted". Linux only.

    clone is allowed for threads. clone3 hides its flags from filters, so it "does not exist", and the C library falls back to
    clone.

    Raises:
        OSError: libseccomp is not installed, or the kernel takes no filter.
    """
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(library.seccomp_init(ALLOW))

    def refuse(call: bytes, error: int, *where: bytes) -> None:
        number = library.seccomp_syscall_resolve_name(call)
        library.seccomp_rule_add_array(rules, REFUSE | error, number, len(where), *where or (None,))

    for call in REFUSED.split():
        refuse(call.encode(), 1)
    masked_equal = 7  # of the first argument, the flags
    refuse(b"clone", 1, struct.pack("IiQQ", 0, masked_equal, CLONE_THREAD, 0))
    refuse(b"clone3", 38)
    if library.seccomp_load(rules):
        raise OSError("the kernel takes no filter of system calls")
