"""All measurements of Phase 5 in one go: each script in a process of its own, within a time, its figures gathered."""

import importlib.util
import json
import math
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

from labkit.foreign import visible
from labkit.paths import outputs
from phase5_real_gpu.measuring.gpu_watch import watch_card
from phase5_real_gpu.measuring.measurements import Measurement
from phase5_real_gpu.measuring.reference_files import Limits, Part

FOLDER = Path(__file__).resolve().parents[1]
TOTAL_SECONDS = 570  # for everything, so that ten minutes are never reached


@dataclass(frozen=True)
class Script:
    """A part of the measurement: a script, and the seconds after which it is stopped."""

    file: str
    seconds: float
    needs: str = ""  # a package without which it has nothing to measure
    resumes: bool = False  # whether it knows --resume


SCRIPTS = {
    "memory": Script("memory_hierarchy.py", 90),
    "kernels": Script("kernel_benchmark.py", 210, resumes=True),
    "engine": Script("engine_benchmark.py", 330, resumes=True),
    "vllm": Script("vllm_comparison.py", 240, needs="vllm"),
}


@dataclass
class Gathered:
    """The figures of the parts so far. `card`: the GPU's own report under load."""

    limits: Limits = field(default_factory=Limits)
    measurements: dict[str, Measurement] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    environment: dict[str, Any] | None = None
    card: dict[str, Any] = field(default_factory=dict)

    def merge(self, report: dict[str, Any]) -> int:
        """Take in a script's report. Returns how many figures were new: of two of one name the first stays."""
        results = report.get("results") or {}
        self.environment = self.environment or report.get("environment")
        self.limits = best_limits(self.limits, results.get("limits"))
        found = [Measurement(**{k: v for k, v in m.items() if k != "share_of_limit"})
                 for m in results.get("measurements") or []]  # fmt: skip
        new = {m.name: m for m in found if m.name not in self.measurements}
        self.measurements |= new
        return len(new)


def best_limits(known: Limits, more: dict[str, Any] | None) -> Limits:
    """A ceiling is the best that was ever seen: the larger of two rates, the smaller of two launch times."""
    if not more:
        return known
    old, new = known.matmul_tflops, more["matmul_tflops"]
    return Limits(
        max(known.read_gb_s or 0, more["read_gb_s"]),
        max(known.copy_gb_s or 0, more["copy_gb_s"]),
        {dtype: max(old.get(dtype, 0), new.get(dtype, 0)) for dtype in sorted({*old, *new})},
        min(known.launch_us or math.inf, more["launch_us"]),
    )


def measure_all(
    parts: Sequence[str],
    options: Sequence[str],
    save: Callable[[Gathered], None],
    tell: Callable[[str], None],
    total_seconds: float = TOTAL_SECONDS,
    vllm_python: str = "",
    resume: bool = False,
) -> Gathered:
    """Run parts one after the other; `save` is called after each.

    Args:
        parts: keys of SCRIPTS. options: for every script.
        tell: called with a line about each part.
        vllm_python: the Python of another environment, in which vLLM lives.
        resume: go on with the reports that an earlier run has left.
    """
    gathered, deadline = Gathered(), time.monotonic() + total_seconds
    with watch_card() as gathered.card:
        for number, key in enumerate(parts, 1):
            script = SCRIPTS[key]
            seconds = min(script.seconds, deadline - time.monotonic())
            tell(f"{number} of {len(parts)}  {script.file} (at most {max(0, seconds):.0f} s)")
            own = ["--vllm-python", vllm_python] if key == "vllm" and vllm_python else []
            part, report = run_part(script, [*options, *own], seconds, resume)
            new = gathered.merge(report)
            gathered.parts.append(part)
            tell(
                f"        {part.outcome}: {new} figures, {part.seconds:.0f} s{part.error and '. ' + part.error}"
            )
            save(gathered)
    return gathered


def run_part(
    script: Script, options: Sequence[str], seconds: float, resume: bool = False
) -> tuple[Part, dict]:
    """Run one script in a process of its own, and stop it, with its children, after some seconds.

    Returns:
        How it went, and its report: its figures so far where it was stopped, {} if there is none. Its output is in
        the folder of outputs.
    """
    path = FOLDER / script.file
    if script.needs and "--vllm-python" not in options and importlib.util.find_spec(script.needs) is None:
        return Part(script.file, "skipped", error=f"{script.needs} is not installed"), {}
    if seconds < 1:
        return Part(script.file, "skipped", error="no time was left for it"), {}
    logs = outputs() / "measure_machine"
    logs.mkdir(parents=True, exist_ok=True)
    log, report_file = logs / f"{path.stem}.txt", logs / f"{path.stem}.json"
    if not resume:
        report_file.unlink(missing_ok=True)
    command = [sys.executable, str(path), "--json", str(report_file), *options]
    command += ["--resume"] * (resume and script.resumes)
    began = time.monotonic()
    with log.open("wb") as said:
        code = run_until(command, said, seconds)
    took, report = round(time.monotonic() - began, 1), {}
    with suppress(OSError, ValueError):
        report = json.loads(report_file.read_text(encoding="utf-8"))
    if code is None:
        return Part(script.file, "timed out", took, f"stopped after {seconds:.0f} s"), report
    if code not in (0, 1) or not report:
        return Part(script.file, "failed", took, f"it ended with code {code}: {last_words(log)}"), report
    return Part(script.file, "ok", took, "a prediction that must hold everywhere did not" * code), report


def last_words(log: Path) -> str:
    """The line in which a script says why it stopped: the last one that says "error", or simply the last."""
    text = log.read_bytes().decode("utf-8", errors="replace")
    lines = [visible(line.strip(), 300) for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it left no report"])[-1]


def run_until(command: list[str], log: Any, seconds: float, folder: Path | None = None) -> int | None:
    """The exit code; None if it had to be stopped. No process that it started is left behind. folder: where it runs."""
    env = os.environ | {"INFERENCE_LAB_RUN": "1"}  # options that a script does not know do it no harm
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True, cwd=folder
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
