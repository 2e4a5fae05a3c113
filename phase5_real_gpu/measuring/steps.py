"""Runs a measurement in parts, each in its own process with a time limit, and collects their figures."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.foreign import visible
from labkit.paths import ROOT
from phase5_real_gpu.measuring.gpu_watch import watch_card
from phase5_real_gpu.measuring.measurements import Limits, Measurement
from phase5_real_gpu.measuring.reference_files import (
    Part,
    Reference,
    as_reference,
    read_reference,
    write_reference,
)


@dataclass(frozen=True)
class Step:
    """A part: arguments of Python, and the seconds after which it is stopped.

    Attributes:
        shows: its subject.
        command: "{report}" stands for the file of its figures, "{gathered}" for the file of all figures so far.
    """

    name: str
    shows: str
    seconds: float
    command: tuple[str, ...]


@dataclass
class Gathered:
    """The figures of the parts so far. `card`: the GPU's own report under load."""

    limits: Limits = field(default_factory=Limits)
    measurements: dict[str, Measurement] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    environment: dict[str, Any] | None = None
    card: dict[str, Any] = field(default_factory=dict)

    def merge(self, report: Reference) -> None:
        """Add a part's report. Of two figures with one name the later is kept, of two limits the better."""
        self.environment = self.environment or report.environment
        self.measurements |= {m.name: m for m in report.measurements}
        self.limits = best_of(self.limits, report.limits)

    def as_reference(self, **fields: Any) -> Reference:
        """The file of this machine. fields: as for `as_reference`."""
        figures = dict(limits=self.limits, measurements=tuple(self.measurements.values()))
        return as_reference(self.environment, card=self.card, **figures, parts=tuple(self.parts), **fields)


def best_of(a: Limits, b: Limits) -> Limits:
    """The better of each pair of limits."""

    def better(name: str, of: Callable = max) -> float | None:
        return of((getattr(x, name) for x in (a, b) if getattr(x, name)), default=None)

    dtypes = sorted(a.matmul_tflops | b.matmul_tflops)
    rates = {d: max(x.matmul_tflops.get(d, 0) for x in (a, b)) for d in dtypes}
    bandwidths = {name: better(name) for name in ("read_gb_s", "copy_gb_s", "h2d_gb_s", "d2h_gb_s")}
    name = a.device_name or b.device_name
    return Limits(**bandwidths, matmul_tflops=rates, launch_us=better("launch_us", min), device_name=name)


def run_steps(
    steps: Sequence[Step],
    folder: Path,
    file: Path,
    tell: Callable[[Step, Part | None, Gathered], None],
    seconds: float,
    earlier: Reference | None = None,
    **fields: Any,
) -> Gathered:
    """Run all parts, one after the other.

    Args:
        folder: for logs and reports. file: for all figures, written after each part.
        tell: called before each part, with None, and after it.
        earlier: the file of an interrupted run: its figures and finished parts are kept, and the other parts continue
            their reports. None: everything is measured again.
        fields: as for `as_reference`.
    """
    gathered, deadline = Gathered(), time.monotonic() + seconds
    if earlier:
        gathered.merge(earlier)
    done = {part.script: part for part in earlier.parts if part.outcome == "ok"} if earlier else {}
    folder.mkdir(parents=True, exist_ok=True)
    with watch_card() as gathered.card:
        for step in steps:
            report_file, part = folder / f"{step.name}.json", done.get(step.name)
            if earlier is None:
                report_file.unlink(missing_ok=True)
            if part is None:
                tell(step, None, gathered)
                names = {"report": str(report_file), "gathered": str(file)}
                command = [word.format(**names) for word in step.command]
                limit = min(step.seconds, deadline - time.monotonic())
                part = run_step(step.name, command, folder / f"{step.name}.txt", report_file, limit)
                with suppress(LabError):  # no report, half of one, or one without figures
                    gathered.merge(read_reference(report_file))
            gathered.parts.append(part)
            write_reference(gathered.as_reference(**fields), file)
            tell(step, part, gathered)
    return gathered


def run_step(name: str, command: Sequence[str], log: Path, report_file: Path, seconds: float) -> Part:
    """Run one part. log: the file for its output."""
    if seconds < 1:
        return Part(name, "skipped", error="no time was left for it")
    began = time.monotonic()
    with log.open("wb") as said:
        code = run_until([sys.executable, *command], said, seconds)
    took = round(time.monotonic() - began, 1)
    if code is None:
        return Part(name, "timed out", took, f"stopped after {seconds:.0f} s")
    crashed = b"Traceback (most recent call last)" in log.read_bytes()
    if code == 1 and report_file.exists() and not crashed:  # a script ends so after all its figures
        return Part(name, "ok", took, "a prediction that must hold everywhere did not")
    if code:
        return Part(name, "failed", took, f"it ended with code {code}: {last_words(log)}")
    return Part(name, "ok", took)


def last_words(log: Path) -> str:
    """The line with the reason why a script stopped: the last with "error", else the last."""
    text = log.read_bytes().decode("utf-8", errors="replace")
    lines = [visible(line.strip(), 300) for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it said nothing"])[-1]


def run_until(command: list[str], log: Any, seconds: float) -> int | None:
    """The exit code, or None after the time limit. On POSIX all processes that the command started are ended too."""
    env = os.environ | {"INFERENCE_LAB_RUN": "1"}  # scripts then ignore options that they do not know
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True, cwd=ROOT
    )
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:  # also for Ctrl-C
        if os.name == "posix":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        elif process.poll() is None:
            process.kill()
        process.wait()
