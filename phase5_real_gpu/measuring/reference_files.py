"""Reads, checks and writes reference files: the figures of one machine in one JSON file.

A file may come from an unknown source or from a newer course, or may be truncated. pydantic checks each field against its type,
and the first mistake is reported in one line. Control characters are removed from texts, so that a file cannot control the
terminal. `reference/README.md` describes the form.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from labkit.errors import LabError
from labkit.foreign import quoted, read_json, visible
from labkit.machine import environment, version_of
from labkit.paths import write_whole
from phase5_real_gpu.measuring.measurements import Limits, Measurement, Name, Text, Tree, as_records

SCHEMA = 1
REFERENCES = Path(__file__).resolve().parents[1] / "reference"
MOST_BYTES = 4 * 2**20
MEASURE_AGAIN = "measure again (`python phase5_real_gpu/measure_machine.py --out FILE`)"
# Packages whose version may explain a figure, besides those of `environment`.
OTHERS = ("flashinfer-python", "vllm", "numba")


def _date(text: str) -> str:
    datetime.fromisoformat(text)
    return visible(text)  # the separator of date and time may be any character, even a line break


def _environment(data: dict[str, Any]) -> dict[str, Any]:
    for key in ("gpu", "packages"):
        if data.get(key) is not None and not isinstance(data[key], dict):
            raise ValueError(f"'{key}' in it is not an object")
    if data.get("gpu") is not None and not isinstance(data["gpu"].get("name"), str):
        raise ValueError("'gpu' in it has no name")
    return data


def _once(measurements: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    names = [m.name for m in measurements]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{min(twice)} is in it twice: keep one of them")
    return measurements


@dataclass(frozen=True)
class Part:
    """The outcome of one script or case: "ok", "failed", "timed out" or "skipped"; `error` gives the reason."""

    script: Text
    outcome: Text
    seconds: Annotated[float, Field(ge=0, lt=1e30)] = 0.0
    error: Text = ""


@dataclass(frozen=True)
class Reference:
    """One machine's file. `reference/README.md` describes each field."""

    name: Name
    title: Text
    origin: Literal["measured", "article", "published"]
    environment: Annotated[Tree, AfterValidator(_environment)]
    command: Text = ""
    measured_at: Annotated[str, AfterValidator(_date)] | None = None
    limits: Limits = field(default_factory=Limits)
    measurements: Annotated[tuple[Measurement, ...], AfterValidator(_once)] = ()
    parts: tuple[Part, ...] = ()
    quick: Annotated[bool, Field(strict=True)] = False
    note: Text = ""

    @property
    def device(self) -> str:
        """ "gpu" or "cpu"."""
        return "gpu" if self.environment.get("gpu") else "cpu"

    @property
    def device_name(self) -> str:
        """The GPU's name, or the processor's where there is no GPU."""
        gpu = self.environment.get("gpu")
        return gpu["name"] if gpu else str(self.environment.get("cpu") or "unknown")

    def get(self, name: str) -> Measurement | None:
        return next((m for m in self.measurements if m.name == name), None)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self), "measurements": as_records(self.measurements)}


_REFERENCE = TypeAdapter(Reference)

# ---------------------------------------------------------------------- reading


def read_reference(path: str | Path) -> Reference:
    """Read a reference file, or the report (`--json`) of one of the scripts that measure.

    Raises:
        LabError: no such file, or its first mistake, in one line.
    """
    path = Path(path)
    try:
        return parse_reference(read_json(path, MOST_BYTES), slug(path.stem))
    except ValueError as error:
        raise LabError(
            f"{visible(path)}: {visible(error, 300)}. Check the file, or {MEASURE_AGAIN}"
        ) from None


def parse_reference(data: Any, fallback_name: str = "yours") -> Reference:
    """The output of `json.load`, checked.

    Raises:
        ValueError: the first mistake, in one line.
    """
    if isinstance(data, dict) and "schema" not in data and isinstance(data.get("results"), dict):
        data = _from_script(data, fallback_name)
    if not isinstance(data, dict) or type(data.get("schema")) is not int:
        raise ValueError("this is no reference file of the course (its 'schema' is missing or no number)")
    if data["schema"] != SCHEMA:
        raise ValueError(f"it has another schema than {SCHEMA}, which this course reads: update the course")
    if data.get("measured_at") is None and data.get("origin") == "measured":
        raise ValueError("'measured_at' is missing, it should be a date such as 2026-11-21")
    # null means absent.
    known = {key: value for key, value in data.items() if value is not None}
    try:
        return _REFERENCE.validate_python(known)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False)[0]
        where, what = ".".join(map(str, wrong["loc"])), wrong["msg"].removeprefix("Value error, ")
        raise ValueError(f"'{where}': {what}; it is {quoted(wrong['input'])}") from None


def _from_script(report: dict[str, Any], name: str) -> dict[str, Any]:
    """Convert the report (`--json`) of a benchmark to a reference file's form."""
    results, arguments, facts = (report.get(key) or {} for key in ("results", "arguments", "environment"))
    script = str(report.get("script"))[:80]
    if not all(isinstance(part, dict) for part in (arguments, facts)) or "measurements" not in results:
        raise ValueError(
            f"the report of {script} has no measurements: give one of kernel_benchmark.py, engine_benchmark.py, "
            "memory_hierarchy.py or measure_machine.py"
        )
    if arguments.get("device") == "cpu":
        facts = facts | {"gpu": None}  # there may be one, but the CPU was measured
    return dict(
        schema=SCHEMA, name=name, title=f"your report of {script}", origin="measured", environment=facts,
        command=f"python {script}", measured_at=facts.get("when"), measurements=results["measurements"],
        limits=results.get("limits"),
        quick=arguments.get("quick") is True,
    )  # fmt: skip


def known_references(folder: Path = REFERENCES) -> list[Reference]:
    """All files of the folder. Raises LabError: as `read_reference`."""
    return [read_reference(path) for path in sorted(folder.glob("*.json"))]


def find_reference(name: str, folder: Path = REFERENCES) -> Reference:
    """By its name, or by the path of a file.

    Raises:
        LabError: there is none, with the names that there are.
    """
    files = {path.stem: path for path in sorted(folder.glob("*.json"))}
    if name in files or name.endswith(".json") or Path(name).name != name:
        return read_reference(files.get(name, name))
    names = ", ".join(files) or "none"
    raise LabError(f"no reference is called {quoted(name)}: use one of {names}, or give a file")


# ---------------------------------------------------------------------- writing


def as_reference(facts: dict[str, Any] | None, device: str, card: dict[str, Any], **fields: Any) -> Reference:
    """The contents of a file from the figures of this run.

    Args:
        facts: as `environment()` gives them; None: those of this process. card: the GPU's own report (`gpu_watch.py`).
        device: where it was measured: "cpu" beside a card leaves the card out.
        fields: of `Reference`; its name and title are made from the card or the processor if they are not given.
    """
    facts = json.loads(json.dumps(facts or environment()))
    if device == "cpu":
        facts["gpu"] = None
    versions = {package: version_of(package) for package in OTHERS if version_of(package)}
    facts["packages"] = facts.get("packages", {}) | versions
    own_title = f"{facts.get('cpu') or 'unknown processor'}, {facts.get('cores')} cores"
    if facts.get("gpu"):
        facts["gpu"] |= card
        own_title = facts["gpu"]["name"]
    names = dict(name=slug(own_title), title=own_title)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Reference(**names | fields, origin="measured", environment=facts, measured_at=now)


def write_reference(reference: Reference, path: str | Path) -> None:
    """Write the file completely or not at all, so that an interrupted run leaves no partial file.

    Raises:
        LabError: the file cannot be written.
    """
    try:
        write_whole(Path(path), json.dumps(reference.to_json(), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise LabError(f"cannot write {path} ({error.strerror}): choose a file that you may write") from None


def slug(text: str) -> str:
    """Any text as a name: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-") or "yours"
