"""Judging where there is no fork (Windows): in a new Python process, to which the answers are sent.

    the learner's kernel  --- seal, exercise, answers, text of the cells (cloudpickle, stdin) -->  python -m exercises.judging.far_worker
                          <-- what the answer prints (stdout), the verdict behind the seal (a file) ---

It takes some seconds more than a fork, since the process loads torch first. The time limit begins after that. An endless loop
and a crash are survived as with a fork, also in C. Memory is not limited on Windows.
"""

import contextlib
import linecache
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from exercises.judging.verdict import Exercise, Verdict
from labkit.paths import ROOT

SECONDS_TO_START = 120.0  # on a slow and busy machine
SEAL = 16  # bytes
GLANCE = 0.02  # seconds between two looks at the process
BOARD = 4096  # bytes


def packed(exercise: Exercise, answers: Sequence[Any]) -> bytes | None:
    """What the process needs; None if there is something in the answers that cannot be sent."""
    cells = {
        name: "".join(entry[2])
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and ("ipykernel_" in name or name.startswith("<"))
    }
    try:
        return cloudpickle.dumps((exercise, tuple(answers), cells))
    except Exception:  # whatever an answer holds: an open file, a lock, a generator
        return None


def judge_far(
    sent: bytes, seconds: float, printed: Any, endless: Verdict, died: Callable[[int], Verdict]
) -> Verdict:
    """Judge in a new process.

    Args:
        printed: takes what the answer prints, with `add` and `end`.
        endless: the verdict if time is up. died: the verdict by the exit code, if there is none.
    """
    seal = secrets.token_bytes(SEAL)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        board, verdict = Path(folder) / "board", Path(folder) / "verdict"
        board.write_bytes(bytes(BOARD))
        process = subprocess.Popen(
            [sys.executable, "-m", "exercises.judging.far_worker", folder],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdin and process.stdout
        read = partial(process.stdout.read1, 65536)
        reader = threading.Thread(target=lambda: [printed.add(data) for data in iter(read, b"")], daemon=True)
        reader.start()
        try:
            with contextlib.suppress(OSError), process.stdin:
                process.stdin.write(seal + sent)
            in_time = _await(process, Path(folder) / "started", seconds)
        finally:  # also when the learner interrupts
            _end(process)
            reader.join(1.0)
            printed.end()
        called = board.read_bytes().partition(b"\0")[0].decode(errors="ignore")  # it never came back
        told = verdict.read_bytes() if verdict.is_file() else b""
    if not in_time:
        return replace(endless, tried=called)
    return Verdict.unsealed(told, seal) or replace(died(process.returncode), tried=called)


def _await(process: subprocess.Popen[bytes], started: Path, seconds: float) -> bool:
    """Whether the process ended in time."""
    until = time.monotonic() + SECONDS_TO_START
    begun = False
    while process.poll() is None:
        if not begun and started.exists():
            begun, until = True, time.monotonic() + seconds
        if time.monotonic() > until:
            return False
        time.sleep(GLANCE)
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, and what it has started."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
    process.kill()
    process.wait()
