"""All measurements of Phase 5 in one go, and the reference file made of them."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from labkit.machine import environment, version_of
from phase5_real_gpu.measuring.gpu_watch import watch_card
from phase5_real_gpu.measuring.measurements import Measurement
from phase5_real_gpu.measuring.reference_files import Limits, Part, Reference, parse_measurement, slug
from phase5_real_gpu.measuring.run_scripts import FOLDER, Script, run_part, terminated_like_interrupted

TOTAL_SECONDS = 570  # for everything, so that ten minutes are never reached
# Whose version may explain a figure, beside those of `environment`.
OTHERS = ("flashinfer-python", "vllm", "numba")
SCRIPTS = {
    "memory": Script("memory_hierarchy.py", 90),
    "kernels": Script("kernel_benchmark.py", 210),
    "engine": Script("engine_benchmark.py", 330),
    "vllm": Script("vllm_comparison.py", 240, needs="vllm"),
}


@dataclass
class Gathered:
    """What the parts have brought so far. `card`: what the GPU said of itself under load."""

    limits: Limits = field(default_factory=Limits)
    measurements: dict[str, Measurement] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    environment: dict[str, Any] | None = None
    card: dict[str, Any] = field(default_factory=dict)

    def merge(self, report: dict[str, Any]) -> tuple[int, list[str]]:
        """Take in a script's report. Returns how many figures were new, and what could not be used."""
        results = report.get("results") or {}
        self.environment = self.environment or report.get("environment")
        problems, new = [], 0
        self.limits = best_limits(self.limits, results.get("limits") or {})
        for data in results.get("measurements") or []:
            try:
                m = parse_measurement(data)
            except ValueError as error:
                problems.append(str(error))
                continue
            if m.name not in self.measurements:  # two parts measure the ceilings; the first figure stays
                self.measurements[m.name] = m
                new += 1
        return new, problems


def best_limits(known: Limits, more: dict[str, Any]) -> Limits:
    """A ceiling is the best that was ever seen: the larger of two rates, the smaller of two launch times."""

    def better(choose: Callable, old: float | None, new: Any) -> float | None:
        usable = isinstance(new, (int, float)) and 0 < new < 1e30
        return choose(v for v in (old, new) if v is not None) if usable else old

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


def measure_all(
    parts: Sequence[str],
    options: Sequence[str],
    save: Callable[[Gathered], None],
    tell: Callable[[str], None],
    total_seconds: float = TOTAL_SECONDS,
    vllm_python: str = "",
) -> Gathered:
    """Run parts one after the other; `save` is called after each.

    Args:
        parts: keys of SCRIPTS. options: for every script.
        tell: called with a line about each part.
        vllm_python: the Python of another environment, in which vLLM lives.
    """
    gathered, deadline = Gathered(), time.monotonic() + total_seconds
    with watch_card() as seen, terminated_like_interrupted():
        for number, key in enumerate(parts, 1):
            script = SCRIPTS[key]
            left = min(script.seconds, deadline - time.monotonic())
            tell(f"{number} of {len(parts)}  {script.file} (at most {max(0, left):.0f} s)")
            own = ["--vllm-python", vllm_python] if key == "vllm" and vllm_python else []
            if own:  # it lives in an environment of its own
                script = replace(script, needs="")
            part, report = run_part(script, [*options, *own], left, FOLDER)
            new, problems = gathered.merge(report) if report is not None else (0, [])
            if problems:
                error = f"{len(problems)} figures could not be used, the first because {problems[0]}"
                part = replace(part, error=error)
            gathered.parts.append(part)
            why = f". {part.error}" if part.error else ""
            tell(f"        {part.outcome}: {new} figures, {part.seconds:.0f} s{why}")
            gathered.card = seen
            save(gathered)
    return gathered


def as_reference(
    facts: dict[str, Any] | None,
    device: str,
    card: dict[str, Any],
    name: str = "",
    title: str = "",
    **fields: Any,
) -> Reference:
    """What was measured just now, as a file's contents.

    Args:
        facts: as `environment()` gives them; None: those of this process. card: what the GPU said of itself.
        device: where it was measured: "cpu" beside a card leaves the card out.
        name, title: of the machine; made from its card or processor if empty.
        fields: of `Reference`.
    """
    facts = json.loads(json.dumps(facts or environment()))
    if device == "cpu":
        facts["gpu"] = None  # there may be one, but it is not what was measured
    versions = {package: version_of(package) for package in OTHERS if version_of(package)}
    facts["packages"] = facts.get("packages", {}) | versions
    own_title = f"{facts.get('cpu') or 'unknown processor'}, {facts.get('cores')} cores"
    if facts.get("gpu"):
        facts["gpu"] |= card
        own_title = facts["gpu"]["name"]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Reference(
        name or slug(own_title), title or own_title, "measured", facts, measured_at=now, **fields
    )
