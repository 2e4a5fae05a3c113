"""Running a script of this phase in a process of its own: within a time, with whatever it says kept."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.paths import outputs
from phase5_real_gpu.measuring.reference_files import Part, plain

FOLDER = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Script:
    """A part of the measurement: a script, and the seconds after which it is stopped."""

    file: str
    seconds: float
    needs: str = ""  # a package without which it has nothing to measure


def run_part(
    script: Script, options: Sequence[str], seconds: float, folder: Path = FOLDER
) -> tuple[Part, Any]:
    """Run one script in a process of its own.

    Args:
        seconds: then it is stopped, and with it whatever it started.

    Returns:
        How it went, and its report (None if it left none that can be read). What it printed is in the outputs.
    """
    path = folder / script.file
    if script.needs and importlib.util.find_spec(script.needs) is None:
        return Part(script.file, "skipped", error=f"{script.needs} is not installed"), None
    if not path.is_file():
        return Part(script.file, "failed", error="there is no such script"), None
    if seconds < 1:
        return Part(script.file, "skipped", error="no time was left for it"), None
    logs = outputs() / "measure_machine"
    logs.mkdir(parents=True, exist_ok=True)
    out, err, report_file = (logs / f"{path.stem}.{kind}" for kind in ("out.txt", "err.txt", "json"))
    report_file.unlink(missing_ok=True)
    began = time.monotonic()
    with out.open("wb") as said, err.open("wb") as complained:
        command = [sys.executable, str(path), "--json", str(report_file), *options]
        code = _run_until(command, said, complained, seconds)
    took = round(time.monotonic() - began, 1)
    report = _read_report(report_file)
    if code is None:
        return Part(script.file, "timed out", took, f"stopped after {seconds:.0f} s"), report
    if code not in (0, 1) or report is None:
        words = last_words(err) or last_words(out) or "it left no report"
        return Part(script.file, "failed", took, f"it ended with code {code}: {words}"), report
    error = "a prediction that must hold on every machine did not" if code == 1 else ""
    return Part(script.file, "ok", took, error), report


def last_words(log: Path) -> str:
    """The line in which a script says why it stopped: the last one that says "error", or simply the last."""
    text = log.read_bytes().decode("utf-8", errors="replace")
    lines = [plain(line[:300]).strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [""])[-1]


def _read_report(path: Path) -> dict[str, Any] | None:
    """A script of our own wrote it, so a NaN somewhere else in it must not cost us its measurements."""
    with suppress(OSError, ValueError):
        report = json.loads(path.read_text(encoding="utf-8"))
        return report if isinstance(report, dict) else None
    return None


def _run_until(command: list[str], out: Any, err: Any, seconds: float) -> int | None:
    """The exit code; None if it had to be stopped. Nothing that it started is left behind, come what may."""
    env = os.environ | {"INFERENCE_LAB_RUN": "1"}  # options that a script does not know do it no harm
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True
    )
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:  # also for Ctrl-C
        if os.name == "posix":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # its children as well, which may outlive it
        elif process.poll() is None:
            process.kill()
        process.wait()


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """`timeout` and batch systems send SIGTERM. Treat it as Ctrl-C, so that the running part is ended, too."""
    if threading.current_thread() is not threading.main_thread() or os.name != "posix":
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
