"""A child process, and everything that it starts, kept together so that it can be ended together.

    the learner's kernel
      └── keeper            waits; ends all that are left when the child ends, or when it is told to
            └── child       runs the answer
                  └── ...   whatever the answer starts

A process may leave its group and its session, and its parent may end before it. Then it would go to process 1 and live on.
Linux gives it to the nearest ancestor that is a "subreaper" instead (man 2 prctl), which is the keeper. Elsewhere there is no
keeper, and only what stayed in the child's process group ends with it.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # from <sys/prctl.h>
GLANCE = 0.005  # seconds between two looks at the child
PATIENCE = 2.0  # seconds that a keeper has to end everything


def fork_kept() -> tuple[int, int]:
    """Like os.fork: 0 in the child; in the parent the process to wait for, which ends as the child does.

    The second number is for `end`: what is written there, or its being closed, tells the keeper to end everything.
    """
    told, tell = os.pipe()
    pid = os.fork()
    if pid:
        os.close(told)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return pid, tell
    try:
        os.close(tell)
        os.setpgid(0, 0)  # out of reach of Ctrl-C
        if sys.platform == "linux":
            _keep_a_child(told)
        os.close(told)
    except BaseException:  # nobody here may go on as if it were the parent
        os._exit(1)
    return 0, -1


def _keep_a_child(told: int) -> None:
    """Fork once more. Only the child comes back from here."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    code = 1
    try:
        done, status = 0, 0
        # No waiting for SIGCHLD: a library may have begun a thread in the fork, and the signal would go there.
        orders = select.poll()
        orders.register(told, select.POLLIN)
        while not done and not orders.poll(1000 * GLANCE):
            done, status = os.waitpid(child, os.WNOHANG)
        while left := Path("/proc/thread-self/children").read_text().split():
            for pid in map(int, left):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)  # its own children are ours now
        if os.WIFSIGNALED(status):
            with contextlib.suppress(OSError):  # SIGKILL cannot have another handler
                signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
            os.kill(os.getpid(), os.WTERMSIG(status))
        code = os.WEXITSTATUS(status)
    finally:
        os._exit(code)


def end(pid: int, tell: int) -> None:
    """End what `fork_kept` began, and wait until it has ended."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # the keeper is gone
            os.write(tell, b".")
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
            time.sleep(GLANCE)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)  # also before it has a group of its own
    os.waitpid(pid, 0)
