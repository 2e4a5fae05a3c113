"""Reference files: what one machine measured, in one JSON. Read with suspicion, written whole.

A reference file may come from an unknown source, from a newer course or from a disk that was full. So everything in it is
checked before it is believed: pydantic holds each field against the type that stands here, and what is wrong is said
in one line. Texts come back without control characters, so that a file cannot move the cursor of its reader. The
form is described in `reference/README.md`.
"""

from __future__ import annotations

import json
import re
import reprlib
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from labkit.errors import LabError
from labkit.paths import write_whole
from phase5_real_gpu.measuring.measurements import Measurement, as_records

SCHEMA = 1
REFERENCES = Path(__file__).resolve().parents[1] / "reference"
NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,79}")
NAME_RULE = "small letters, digits and . _ + - only, at most 80 of them"
MOST_BYTES = 4 * 2**20
MEASURE_AGAIN = "measure again (`python phase5_real_gpu/measure_machine.py --out FILE`)"


# ---------------------------------------------------------------------- what may stand in a file


def plain(text: str) -> str:
    """An untrusted text for the screen: no control characters, so no escape sequences and no line breaks."""
    return "".join(c if c.isprintable() else " " for c in text)


def _printable(value: Any, depth: int = 0) -> Any:
    """The same for a whole tree of values, whose numbers are finite."""
    if depth > 8:
        raise ValueError("it is nested too deep")
    if isinstance(value, str):
        return plain(value[:300])
    if isinstance(value, dict):
        return {plain(str(k)[:300]): _printable(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_printable(v, depth + 1) for v in value]
    if value is None or (isinstance(value, (bool, int, float)) and abs(value) < 1e30):
        return value
    raise ValueError(f"it holds {shown(value)}, which is no figure")


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError(f"use {NAME_RULE}")
    return text


def _date(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("it should be a date such as 2026-11-21") from None
    return plain(text)  # between date and time any character is accepted, a line break too


def _environment(data: dict[str, Any]) -> dict[str, Any]:
    for key in ("gpu", "packages"):
        if data.get(key) is not None and not isinstance(data[key], dict):
            raise ValueError(f"'{key}' in it is {shown(data[key])}, not an object")
    if data.get("gpu") is not None and not isinstance(data["gpu"].get("name"), str):
        raise ValueError("'gpu' in it has no name")
    return _printable(data)


def _figure(value: float) -> float:
    if not 1e-30 < value < 1e30:  # NaN is not, either
        raise ValueError("it must be a number above 0")
    return value


def _once(measurements: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    names = [m.name for m in measurements]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{twice[0]} is in it twice: keep one of them")
    return measurements


Text = Annotated[str, Field(max_length=300), AfterValidator(plain)]
LongText = Annotated[str, Field(max_length=1000), AfterValidator(plain)]
Name = Annotated[str, AfterValidator(_name)]
Figure = Annotated[float, Field(strict=True), AfterValidator(_figure)]


@dataclass(frozen=True)
class _Measurement(Measurement):
    """A measurement whose fields are checked when it is read. More keys than it has fields do no harm."""

    name: Name
    value: Figure
    unit: Annotated[str, Field(max_length=20), AfterValidator(plain)]
    better: Literal["lower", "higher"]
    floor: Figure | None = None
    details: Annotated[dict[str, Any], AfterValidator(_printable)] = field(default_factory=dict)


def _as_measurement(checked: _Measurement) -> Measurement:
    return Measurement(**vars(checked))


@dataclass(frozen=True)
class Limits:
    """What a machine can do at best. None or absent: not known.

    Attributes:
        read_gb_s, copy_gb_s: main memory (on a GPU its own), 1 GB = 10^9 bytes.
        matmul_tflops: by dtype, large matrix products.
        launch_us: from asking for the smallest piece of work to its end.
        source: "measured", or "data sheet" (which no program reaches).
    """

    read_gb_s: Figure | None = None
    copy_gb_s: Figure | None = None
    matmul_tflops: Annotated[dict[Text, Figure], BeforeValidator(lambda rates: rates or {})] = field(
        default_factory=dict
    )
    launch_us: Figure | None = None
    source: Text = "measured"


@dataclass(frozen=True)
class Part:
    """How one script of a measurement went: "ok", "failed", "timed out" or "skipped"; `error` says why."""

    script: Text
    outcome: Text
    seconds: Annotated[float, Field(strict=True, ge=0, lt=1e30)] = 0.0
    error: LongText = ""


@dataclass(frozen=True)
class Reference:
    """One machine's file. See `reference/README.md` for what each field holds."""

    name: Name
    title: Text
    origin: Literal["measured", "article", "published"]
    environment: Annotated[dict[str, Any], AfterValidator(_environment)]
    command: Text = ""
    measured_at: Annotated[str, AfterValidator(_date)] | None = None
    limits: Annotated[Limits, BeforeValidator(lambda limits: {} if limits is None else limits)] = field(
        default_factory=Limits
    )
    measurements: Annotated[
        tuple[Annotated[_Measurement, AfterValidator(_as_measurement)], ...], AfterValidator(_once)
    ] = ()
    parts: tuple[Part, ...] = ()
    quick: Annotated[bool, Field(strict=True)] = False
    note: LongText = ""

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


_REFERENCE, _MEASUREMENT = TypeAdapter(Reference), TypeAdapter(_Measurement)


# ---------------------------------------------------------------------- reading


def read_reference(path: str | Path) -> Reference:
    """Read a reference file, or the report (`--json`) of one of the scripts that measure.

    Raises:
        LabError: no such file, or whatever is wrong with it, in one line: file, mistake, remedy.
    """
    path = Path(path)
    try:
        return parse_reference(_load_json(path), fallback_name=slug(path.stem))
    except ValueError as error:
        raise LabError(f"{plain(str(path))}: {error}") from None


def parse_reference(data: Any, fallback_name: str = "yours") -> Reference:
    """What `json.load` gave, checked.

    Raises:
        ValueError: what is wrong, and the remedy, in one line.
    """
    if isinstance(data, dict) and "schema" not in data and isinstance(data.get("results"), dict):
        data = _from_script(data, fallback_name)
    if not isinstance(data, dict) or "schema" not in data:
        raise ValueError(f"this is no reference file of the course (it has no 'schema'): {MEASURE_AGAIN}")
    schema = data["schema"]
    if type(schema) is not int or schema < 1:
        raise ValueError(f"'schema' is {shown(schema)}, it should be {SCHEMA}: {MEASURE_AGAIN}")
    if schema > SCHEMA:
        raise ValueError(f"it has schema {shown(schema)}, this course reads {SCHEMA}: update the course")
    if data.get("measured_at") is None and data.get("origin") != "article":
        raise ValueError(f"'measured_at' is missing, it should be a date such as 2026-11-21: {MEASURE_AGAIN}")
    for key in ("environment", "measurements"):
        if data.get(key) is None:
            raise ValueError(f"'{key}' is missing: {MEASURE_AGAIN}")
    return _checked(_REFERENCE, data)


def parse_measurement(data: Any) -> Measurement:
    """One measurement, as `as_records` gives it.

    Raises:
        ValueError: what is wrong with it.
    """
    return _as_measurement(_checked(_MEASUREMENT, data))


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
    found = {reference.name: reference for reference in known_references(folder)[0]}
    if name in found:
        return found[name]
    if name.endswith(".json") or Path(name).name != name:
        return read_reference(name)
    raise LabError(
        f"no reference is called {shown(name)}: use one of {', '.join(found) or 'none'}, or give a file"
    )


def _load_json(path: Path) -> Any:
    """The contents of a JSON file of a sensible size, without NaN and infinities."""

    def refuse(word: str) -> None:
        raise LabError(f"it holds {word}, which is no figure: {MEASURE_AGAIN}")

    try:
        if path.stat().st_size > MOST_BYTES:
            raise LabError(
                f"{path.stat().st_size:,} bytes are no reference file: a few ten thousand are usual"
            )
        text = path.read_text(encoding="utf-8")
        return json.loads(text, parse_constant=refuse)
    except LabError as error:
        raise ValueError(str(error)) from None
    except OSError as error:
        raise ValueError(
            f"it cannot be read ({error.strerror}): check the path, or {MEASURE_AGAIN}"
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"it is not text in UTF-8: {MEASURE_AGAIN}") from None
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        what = "the file ends too early" if cut else f"no JSON at line {error.lineno}, column {error.colno}"
        raise ValueError(f"{what}: copy it again, or {MEASURE_AGAIN}") from None
    except RecursionError:
        raise ValueError(f"it is nested too deep: {MEASURE_AGAIN}") from None
    except ValueError as error:  # a path with a zero byte, a number with thousands of digits
        raise ValueError(f"it cannot be read ({str(error).split(';')[0]}): {MEASURE_AGAIN}") from None


def _from_script(report: dict[str, Any], name: str) -> dict[str, Any]:
    """The report of kernel_benchmark.py and its like: the same figures in another wrapping."""
    results, script = report["results"], plain(str(report.get("script"))[:80])
    if "measurements" not in results:
        raise ValueError(
            f"the report of {script} has no measurements: give one of kernel_benchmark.py, engine_benchmark.py, "
            "memory_hierarchy.py or measure_machine.py"
        )
    arguments = report.get("arguments") if isinstance(report.get("arguments"), dict) else {}
    environment = report.get("environment")
    if isinstance(environment, dict) and arguments.get("device") == "cpu":
        environment = environment | {"gpu": None}  # there is one, but it is not what was measured
    return dict(
        schema=SCHEMA,
        name=name,
        title=f"your report of {script}",
        origin="measured",
        environment=environment,
        command=f"python {script}",
        measured_at=environment.get("when") if isinstance(environment, dict) else None,
        limits=results.get("limits"),
        measurements=results["measurements"],
        quick=arguments.get("quick") is True,
    )


def _checked(form: TypeAdapter, data: Any) -> Any:
    """`data` in this form. Raises ValueError with the first thing that is wrong: where, what stands there, the rule."""
    try:
        return form.validate_python(data)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        where = ".".join(map(str, wrong["loc"]))
        if wrong["loc"][0] == "measurements" and len(wrong["loc"]) > 2:  # by its name, not by its number
            measurement = data["measurements"][wrong["loc"][1]]
            where = f"{wrong['loc'][2]}' of '{plain(str(measurement.get('name')))[:80]}"
        what = "is missing" if wrong["type"] == "missing" else f"is {shown(wrong['input'])}"
        rule = re.sub(r" or an instance of \w+|^Value error, ", "", wrong["msg"]).replace("Input", "it")
        raise ValueError(f"'{where}' {what}: {plain(rule)}; {MEASURE_AGAIN}") from None


def shown(value: Any) -> str:
    """An untrusted value in a message of one line."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 2, 60, 60
    try:
        return plain(short.repr(value))[:80]
    except ValueError:  # Python does not print an integer of more than 4,300 digits
        return "a number with thousands of digits"


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
