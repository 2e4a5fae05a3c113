"""Measure everything on this machine in one call, and write one reference file.

It runs the scripts of this phase that measure, one after the other, each in a process of its own:

    memory    memory_hierarchy.py     what this machine's memories can do
    kernels   kernel_benchmark.py     attention kernels beside their floors and their peers
    engine    engine_benchmark.py     TTFT, ITL and throughput of the whole engine
    vllm      vllm_comparison.py      the real vLLM beside it, where it is installed

A part that fails or takes too long is stopped, its error goes into the file, and the others go on. The file is
written after each part: a run that is cut short leaves what it has. Together they take less than ten minutes.
Close what else is running; the figures are only worth something on a quiet machine.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.lab import Lab, run_lab
from labkit.machine import environment, version_of
from labkit.paths import outputs
from phase5_real_gpu.comparing.reference_files import (
    NAME,
    NAME_RULE,
    Limits,
    Part,
    Reference,
    parse_measurement,
    slug,
    write_reference,
)
from phase5_real_gpu.comparing.untrusted import Wrong, is_number, plain
from phase5_real_gpu.measuring.gpu_watch import GpuWatch
from phase5_real_gpu.measuring.measurements import Measurement
from phase5_real_gpu.measuring.run_scripts import FOLDER, Script, run_part, terminated_like_interrupted

TOTAL_SECONDS = 570  # for everything, so that ten minutes are never reached
OTHERS = (
    "flashinfer-python",
    "vllm",
    "numba",
)  # whose version may explain a figure, beside those of `environment`


SCRIPTS = {
    "memory": Script("memory_hierarchy.py", 90),
    "kernels": Script("kernel_benchmark.py", 210),
    "engine": Script("engine_benchmark.py", 330),
    "vllm": Script("vllm_comparison.py", 240, needs="vllm"),
}


@dataclass
class Gathered:
    """What the parts have brought so far."""

    limits: Limits = field(default_factory=Limits)
    measurements: dict[str, Measurement] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    environment: dict[str, Any] | None = None

    def merge(self, report: dict[str, Any]) -> tuple[int, list[str]]:
        """Take in a script's report. Returns how many figures were new, and what could not be used."""
        results = report.get("results")
        results = results if isinstance(results, dict) else {}
        self.environment = self.environment or report.get("environment")
        problems, new = [], 0
        if isinstance(results.get("limits"), dict):
            self.limits = best_limits(self.limits, results["limits"])
        measurements = results.get("measurements")
        for data in measurements if isinstance(measurements, list) else []:
            try:
                m = parse_measurement(data)
            except Wrong as error:
                problems.append(str(error))
                continue
            if m.name not in self.measurements:  # two parts measure the ceilings; the first figure stays
                self.measurements[m.name] = m
                new += 1
        return new, problems


def best_limits(known: Limits, more: dict[str, Any]) -> Limits:
    """A ceiling is the best that anybody saw: the larger of two rates, the smaller of two launch times."""

    def better(choose: Callable, old: float | None, new: Any) -> float | None:
        return choose(v for v in (old, new) if v is not None) if is_number(new) and new > 0 else old

    rates = dict(known.matmul_tflops)
    for dtype, rate in (more.get("matmul_tflops") or {}).items():
        if (best := better(max, rates.get(dtype), rate)) is not None:
            rates[dtype] = best
    return Limits(
        better(max, known.read_gb_s, more.get("read_gb_s")),
        better(max, known.copy_gb_s, more.get("copy_gb_s")),
        rates,
        better(min, known.launch_us, more.get("launch_us")),
    )


# ---------------------------------------------------------------------- all parts


def measure_all(
    parts: Sequence[str],
    options: Sequence[str],
    save: Callable[[Gathered, GpuWatch], None],
    tell: Callable[[str], None] = print,
    total_seconds: float = TOTAL_SECONDS,
    folder: Path = FOLDER,
    vllm_python: str = "",
) -> Gathered:
    """Run parts one after the other; `save` is called after each.

    Args:
        parts: keys of SCRIPTS. options: for every script.
        tell: a line for whoever waits.
        vllm_python: the Python of another environment, in which vLLM lives.
    """
    gathered, deadline = Gathered(), time.monotonic() + total_seconds
    with GpuWatch() as watch, terminated_like_interrupted():
        for number, key in enumerate(parts, 1):
            script = SCRIPTS[key]
            left = min(script.seconds, deadline - time.monotonic())
            tell(f"{number} of {len(parts)}  {script.file} (at most {max(0, left):.0f} s)")
            own = ["--vllm-python", vllm_python] if key == "vllm" and vllm_python else []
            if own:  # it lives in an environment of its own
                script = replace(script, needs="")
            part, report = run_part(script, [*options, *own], left, folder)
            new, problems = gathered.merge(report) if report is not None else (0, [])
            if problems:
                error = f"{len(problems)} figures could not be used, the first because {problems[0]}"
                part = Part(part.script, part.outcome, part.seconds, plain(error))
            gathered.parts.append(part)
            tell(
                f"        {part.outcome}: {new} figures, {part.seconds:.0f} s{f'. {part.error}' * bool(part.error)}"
            )
            save(gathered, watch)
    return gathered


def as_reference(
    gathered: Gathered,
    watch: GpuWatch,
    name: str = "",
    title: str = "",
    command: str = "",
    quick: bool = False,
    device: str = "auto",
) -> Reference:
    """What was gathered, as a file's contents."""
    facts = json.loads(json.dumps(gathered.environment or environment()))
    if device == "cpu":
        facts["gpu"] = None  # there may be one, but it is not what was measured
    packages = facts.setdefault("packages", {})
    packages |= {package: version_of(package) for package in OTHERS if version_of(package)}
    if facts.get("gpu"):
        facts["gpu"] |= watch.summary()
        own_title = facts["gpu"]["name"]
    else:
        own_title = f"{facts.get('cpu') or 'unknown processor'}, {facts.get('cores')} cores"
    return Reference(
        name=name or slug(own_title),
        title=title or own_title,
        origin="measured",
        environment=facts,
        command=command,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        limits=gathered.limits,
        measurements=tuple(gathered.measurements.values()),
        parts=tuple(gathered.parts),
        quick=quick,
    )


def check_writable(out: Path) -> None:
    """Now, and not after ten minutes."""
    if out.is_dir():
        raise LabError(f"--out {out} is a folder: name a file in it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out.parent).close()
    except OSError as error:
        raise LabError(f"cannot write {out} ({error.strerror}): choose a file that you may write") from None


def story(lab: Lab) -> None:
    args = lab.args
    parts = list(SCRIPTS) if not args.parts else [p for p in args.parts.replace(" ", "").split(",") if p]
    if unknown := [p for p in parts if p not in SCRIPTS]:
        raise LabError(f"unknown part {unknown[0]!r}: use some of {','.join(SCRIPTS)}")
    if not parts:
        raise LabError(f"--parts is empty: use some of {','.join(SCRIPTS)}")
    if args.name and not NAME.fullmatch(args.name):
        raise LabError(f"--name {args.name!r}: use {NAME_RULE}")
    if not 0 < args.seconds <= 24 * 3600:
        raise LabError(f"--seconds {args.seconds:g}: it must be above 0 and at most a day")
    if len(args.title) > 300:
        raise LabError(f"--title has {len(args.title):,} characters: shorten it to 300")
    out = Path(args.out) if args.out else outputs() / "machine.json"
    check_writable(out)
    options = ["--device", args.device] + ["--quick"] * lab.quick
    command = "python phase5_real_gpu/measure_machine.py" + " --quick" * lab.quick
    command += f" --parts {','.join(parts)}" * bool(args.parts)

    def save(gathered: Gathered, watch: GpuWatch) -> None:
        write_reference(
            as_reference(gathered, watch, args.name, args.title, command, lab.quick, args.device), out
        )

    lab.say(f"""{len(parts)} parts, together at most {args.seconds / 60:.0f} minutes. Leave the machine alone
        meanwhile.""")
    gathered = measure_all(
        parts,
        options,
        save,
        lambda line: lab.console.print(line, markup=False, highlight=False),
        args.seconds,
        vllm_python=args.vllm_python,
    )
    lab.table(
        "What ran",
        ["script", "outcome", "seconds", "why"],
        [[p.script, p.outcome, p.seconds, p.error[:60]] for p in gathered.parts],
    )
    lab.record(file=str(out), parts=[vars(p) for p in gathered.parts], figures=len(gathered.measurements))
    if not gathered.measurements:
        raise LabError(f"no part brought a figure: {next(p.error for p in gathered.parts)} (see {out})")
    lab.say(f"""{len(gathered.measurements)} figures are in {out}. Lay them beside the course's own with
        `python phase5_real_gpu/compare_to_reference.py {out}`.""")


def add_arguments(parser: Any) -> None:
    parser.add_argument("--out", metavar="FILE", help="where to write (default: outputs/machine.json)")
    parser.add_argument(
        "--name", default="", help="short name of this machine (default: made from its processor)"
    )
    parser.add_argument("--title", default="", help="the same in words")
    parser.add_argument("--parts", metavar="A,B", help=f"only these: {','.join(SCRIPTS)}")
    parser.add_argument(
        "--vllm-python", default="", metavar="FILE", help="python of an environment that has vLLM"
    )
    parser.add_argument(
        "--seconds", type=float, default=TOTAL_SECONDS, help=f"for everything together ({TOTAL_SECONDS})"
    )


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("device", "quick"), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
