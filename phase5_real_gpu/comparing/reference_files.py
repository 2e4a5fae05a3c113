"""Reference files: what one machine measured, in one JSON. Read with suspicion, written whole.

A reference file may come from a stranger, from a newer course or from a disk that was full. So everything in
it is checked before it is believed, and what is wrong is said in one line. The form is described in
`reference/README.md`.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.paths import write_whole
from phase5_real_gpu.comparing.untrusted import (
    MEASURE_AGAIN,
    Wrong,
    a_choice,
    a_date,
    a_list,
    a_number,
    a_number_or_none,
    a_text,
    an_object,
    is_number,
    kind_of,
    load_json,
    plain,
    printable,
    shown,
    yes_or_no,
)
from phase5_real_gpu.measuring.measurements import Measurement

SCHEMA = 1
REFERENCES = Path(__file__).resolve().parents[1] / "reference"
ORIGINS = ("measured", "article")
BETTER = ("lower", "higher")
LIMITED_BY = ("bandwidth", "arithmetic", "launch")
NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,79}")
NAME_RULE = "small letters, digits and . _ + - only, at most 80 of them"


@dataclass(frozen=True)
class Limits:
    """What a machine can do at best. None or absent: not known.

    Attributes:
        read_gb_s, copy_gb_s: main memory (on a GPU its own), 1 GB = 10^9 bytes.
        matmul_tflops: by dtype, large matrix products.
        launch_us: from asking for the smallest piece of work to its end.
        source: "measured", or "data sheet" (which no program reaches).
    """

    read_gb_s: float | None = None
    copy_gb_s: float | None = None
    matmul_tflops: dict[str, float] = field(default_factory=dict)
    launch_us: float | None = None
    source: str = "measured"


@dataclass(frozen=True)
class Part:
    """How one script of a measurement went: "ok", "failed", "timed out" or "skipped"; `error` says why."""

    script: str
    outcome: str
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Reference:
    """One machine's file. See `reference/README.md` for what each field holds."""

    name: str
    title: str
    origin: str
    environment: dict[str, Any]
    command: str = ""
    measured_at: str | None = None
    limits: Limits = field(default_factory=Limits)
    measurements: tuple[Measurement, ...] = ()
    parts: tuple[Part, ...] = ()
    quick: bool = False
    note: str = ""

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
        data = asdict(self)
        data["measurements"] = [asdict(m) | {"share_of_limit": m.share_of_limit} for m in self.measurements]
        data["parts"] = [asdict(part) for part in self.parts]
        return {"schema": SCHEMA, **data}


# ---------------------------------------------------------------------- reading


def read_reference(path: str | Path) -> Reference:
    """Read a reference file, or the report (`--json`) of one of the scripts that measure.

    Raises:
        LabError: no such file, or whatever is wrong with it, in one line: file, mistake, remedy.
    """
    path = Path(path)
    try:
        return parse_reference(load_json(path), fallback_name=slug(path.stem))
    except Wrong as error:
        raise LabError(f"{plain(str(path))}: {error}") from None


def parse_reference(data: Any, fallback_name: str = "yours") -> Reference:
    """What `json.load` gave, checked.

    Raises:
        ValueError: what is wrong, and the remedy.
    """
    data = an_object(data, "it")
    if "schema" not in data and "script" in data and isinstance(data.get("results"), dict):
        return _from_script(data, fallback_name)
    if "schema" not in data:
        raise Wrong(f"this is no reference file of the course (it has no 'schema'): {MEASURE_AGAIN}")
    schema = data["schema"]
    if type(schema) is not int or schema < 1:
        raise Wrong(f"'schema' is {shown(schema)}, it should be {SCHEMA}: {MEASURE_AGAIN}")
    if schema > SCHEMA:
        raise Wrong(f"it has schema {shown(schema)}, this course reads {SCHEMA}: update the course")
    origin = a_choice(data, "origin", ORIGINS)
    when = data.get("measured_at")
    return Reference(
        name=_name(data, "the file"),
        title=a_text(data, "title"),
        origin=origin,
        environment=_environment(data.get("environment")),
        command=a_text(data, "command", ""),
        measured_at=None if when is None and origin == "article" else a_date(when, "'measured_at'"),
        limits=_limits(data.get("limits")),
        measurements=_measurements(data.get("measurements")),
        parts=tuple(_part(p) for p in a_list(data.get("parts", []), "'parts'")),
        quick=yes_or_no(data, "quick"),
        note=a_text(data, "note", "", 1000),
    )


def parse_measurement(data: Any) -> Measurement:
    """One measurement, as `asdict` gives it. More keys than it has fields do no harm.

    Raises:
        ValueError: what is wrong with it.
    """
    data = an_object(data, "a measurement")
    name = _name(data, "a measurement")
    limit = data.get("limit")
    return Measurement(
        name=name,
        value=a_number(data.get("value"), f"'value' of {name}"),
        unit=a_text(data, "unit", most=20),
        better=a_choice(data, "better", BETTER),  # type: ignore[arg-type]
        floor=a_number_or_none(data.get("floor"), f"'floor' of {name}"),
        limit=None if limit is None else a_choice(data, "limit", LIMITED_BY),  # type: ignore[arg-type]
        details=printable(an_object(data.get("details", {}), f"'details' of {name}")),
    )


def known_references(folder: Path = REFERENCES) -> tuple[list[Reference], list[str]]:
    """All files of the folder that can be read, and a line for each that cannot."""
    found, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(read_reference(path))
        except LabError as error:
            problems.append(str(error))
    return found, problems


def find_reference(name: str, folder: Path = REFERENCES) -> Reference:
    """By its name, or by the path of a file.

    Raises:
        LabError: there is none, with the names that there are.
    """
    found, _ = known_references(folder)
    for reference in found:
        if reference.name == name:
            return reference
    if name.endswith(".json") or "/" in name or os.sep in name:
        return read_reference(name)
    names = ", ".join(r.name for r in found) or "none"
    raise LabError(f"no reference is called {shown(name)}: use one of {names}, or give a file")


# ---------------------------------------------------------------------- writing


def write_reference(reference: Reference, path: str | Path) -> None:
    """Write the file whole or not at all: a run that is cut short must not leave half of one.

    Raises:
        LabError: the file cannot be written. ValueError: it holds what no reader would accept.
    """
    data = reference.to_json()
    parse_reference(data)  # what cannot be read back is not written
    try:
        write_whole(Path(path), json.dumps(data, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise LabError(f"cannot write {path} ({error.strerror}): choose a file that you may write") from None


def slug(text: str) -> str:
    """Any text as a name: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-") or "yours"


# ---------------------------------------------------------------------- the pieces of a file


def _from_script(data: dict[str, Any], name: str) -> Reference:
    """The report of kernel_benchmark.py and its like: the same figures in another wrapping."""
    results, script = data["results"], a_text(data, "script")
    if "measurements" not in results:
        raise Wrong(
            f"the report of {script} has no measurements: give one of kernel_benchmark.py, engine_benchmark.py, "
            "memory_hierarchy.py or measure_machine.py"
        )
    environment = _environment(data.get("environment"))
    arguments = data.get("arguments")
    if isinstance(arguments, dict) and arguments.get("device") == "cpu":
        environment["gpu"] = None  # there is one, but it is not what was measured
    return Reference(
        name=name,
        title=f"your report of {script}",
        origin="measured",
        environment=environment,
        command=f"python {script}",
        measured_at=a_date(environment.get("when"), "'when' in 'environment'"),
        limits=_limits(results.get("limits")),
        measurements=_measurements(results["measurements"]),
        quick=isinstance(arguments, dict) and arguments.get("quick") is True,
    )


def _name(data: dict[str, Any], whose: str) -> str:
    name = a_text(data, "name")
    if not NAME.fullmatch(name):
        raise Wrong(f"'name' of {whose} is {shown(name)}: use {NAME_RULE}")
    return name


def _measurements(data: Any) -> tuple[Measurement, ...]:
    found = [parse_measurement(m) for m in a_list(data, "'measurements'")]
    seen: set[str] = set()
    for m in found:
        if m.name in seen:
            raise Wrong(f"{m.name} is in it twice: keep one of them")
        seen.add(m.name)
    return tuple(found)


def _limits(data: Any) -> Limits:
    if data is None:
        return Limits()
    data = an_object(data, "'limits'")
    rates = an_object(data.get("matmul_tflops") or {}, "'matmul_tflops'")
    single = {k: a_number_or_none(data.get(k), f"'{k}'") for k in ("read_gb_s", "copy_gb_s", "launch_us")}
    return Limits(
        **single,
        matmul_tflops={plain(k, 20): a_number(v, "a rate in 'matmul_tflops'") for k, v in rates.items()},
        source=a_text(data, "source", "measured", 40),
    )


def _environment(data: Any) -> dict[str, Any]:
    data = an_object(data, "'environment'")
    for key in ("gpu", "packages"):
        if data.get(key) is not None and not isinstance(data[key], dict):
            raise Wrong(f"'{key}' in 'environment' is {kind_of(data[key])}, not an object: {MEASURE_AGAIN}")
    if data.get("gpu") is not None:
        a_text(data["gpu"], "name")
    return printable(data)


def _part(data: Any) -> Part:
    data = an_object(data, "an entry of 'parts'")
    seconds = data.get("seconds", 0.0)
    if not is_number(seconds) or seconds < 0:
        raise Wrong(
            f"'seconds' of a part is {shown(seconds)}, it must be a number from 0 on: {MEASURE_AGAIN}"
        )
    return Part(
        a_text(data, "script"), a_text(data, "outcome"), float(seconds), a_text(data, "error", "", 1000)
    )
