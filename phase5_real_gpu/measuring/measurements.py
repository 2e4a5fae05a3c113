"""A measured figure with the limit of its machine, and a bench that collects the figures of a run.

Every benchmark of this phase reports its figures in this form, so `compare_to_reference.py` can compare two machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass as checked_dataclass

from labkit.errors import LabError
from labkit.foreign import visible
from phase2_attention_kvcache.measuring.roofline import Ceilings, Work

GB, TERA = 10**9, 10**12


def _printable(value: Any) -> Any:
    """Values from a file, nested: control codes are removed from texts, and numbers must be finite."""
    if isinstance(value, str):
        return visible(value, 300)
    if isinstance(value, dict):
        return {visible(k, 300): _printable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_printable(v) for v in value]
    if value is None or (isinstance(value, (bool, int, float)) and abs(value) < 1e30):
        return value
    raise ValueError("it holds a number that is not finite")


Text = Annotated[str, Field(max_length=1000), AfterValidator(lambda text: visible(text, 1000))]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._+-]{0,79}$")]
Figure = Annotated[float, Field(strict=True, gt=1e-30, lt=1e30)]
Tree = Annotated[dict[str, Any], AfterValidator(_printable)]


@checked_dataclass(frozen=True)
class Measurement:
    """One figure. Its fields are checked, because it may come from a file of an unknown source.

    Attributes:
        name: the same on every machine: "decode-b64-4k", "ttft-gpt2-isl100".
        value, unit: the figure (the median, where it was taken several times).
        better: "lower" if a smaller value is better, else "higher".
        floor: the value that this machine's limit allows, in the same unit: the shortest time, or the
            greatest rate. None where no simple limit applies.
        limit: what sets the floor: "bandwidth", "arithmetic" or "launch".
        details: what explains the figure: sizes, dtype, p10 and p90, settings.
    """

    name: Name
    value: Figure
    unit: Annotated[Text, Field(max_length=20)]
    better: Literal["lower", "higher"] = "lower"
    floor: Figure | None = None
    limit: Literal["bandwidth", "arithmetic", "launch"] | None = None
    details: Tree = field(default_factory=dict)

    @property
    def share_of_limit(self) -> float | None:
        """The share of the limit that was reached (1.0: the limit itself); None without a floor."""
        if not self.floor:
            return None
        return self.floor / self.value if self.better == "lower" else self.value / self.floor


class Floor(NamedTuple):
    """The shortest time that a piece of work can take, and what sets it."""

    seconds: float
    limit: Literal["bandwidth", "arithmetic"]


@checked_dataclass(frozen=True)
class Limits:
    """The limits of a machine. None or absent: not known.

    Attributes:
        read_gb_s: reading main memory (of a GPU: its own), in 10^9 bytes per second.
        copy_gb_s: copying within it; the bytes read and the bytes written both count.
        matmul_tflops: a large matrix multiplication, by dtype, in 10^12 operations per second; an addition
            and a multiplication count as two. On a CPU at least the rate of float32, to which other dtypes can be converted.
        launch_us: time per operation in a sequence of operations on a single number: the cost of a launch.
        source: "measured", or "data sheet" (which no program reaches).
        device_name: the processor or the card.
        h2d_gb_s, d2h_gb_s: from pinned main memory to the GPU, and back.
    """

    read_gb_s: Figure | None = None
    copy_gb_s: Figure | None = None
    matmul_tflops: dict[Text, Figure] = field(default_factory=dict)
    launch_us: Figure | None = None
    source: Text = "measured"
    device_name: Text = ""
    h2d_gb_s: Figure | None = None
    d2h_gb_s: Figure | None = None

    def ceilings(self, dtype: str) -> Ceilings:
        """For the roofline of phase 2. Raises KeyError if matrix multiplications in this dtype were not measured."""
        return Ceilings(self.read_gb_s * GB, self.matmul_tflops[dtype] * TERA)

    def floor(self, work: Work, dtype: str) -> Floor:
        """Bytes over the bandwidth, or operations over the rate, whichever takes longer."""
        ceilings = self.ceilings(dtype)
        memory, arithmetic = work.bytes / ceilings.bandwidth, work.operations / ceilings.rate
        return Floor(memory, "bandwidth") if memory >= arithmetic else Floor(arithmetic, "arithmetic")

    def measurements(self) -> list[Measurement]:
        """Under the names that all machines use."""
        rates: list[tuple[str, float | None, str]] = [
            ("read-bandwidth", self.read_gb_s, "GB/s"),
            ("copy-bandwidth", self.copy_gb_s, "GB/s"),
            *((f"matmul-{dtype}", rate, "TFLOP/s") for dtype, rate in self.matmul_tflops.items()),
            ("h2d-bandwidth", self.h2d_gb_s, "GB/s"),
            ("d2h-bandwidth", self.d2h_gb_s, "GB/s"),
        ]
        found = [Measurement(name, value, unit, "higher") for name, value, unit in rates if value]
        return [*found, *([Measurement("launch", self.launch_us, "us")] if self.launch_us else [])]


def as_records(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """For a script's report, under "measurements"."""
    return [asdict(m) | {"share_of_limit": m.share_of_limit} for m in measurements]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Lowest, 10th and 90th percentile and highest of a figure's repeats, for its details."""
    ordered = sorted(values)
    last = len(ordered) - 1
    places = dict(lowest=0, p10=round(0.1 * last), p90=round(0.9 * last), highest=last)
    return {name: ordered[place] for name, place in places.items()} | {"times": len(ordered)}


class NotHere(Exception):
    """The reason, in a line, why this machine or this case cannot have a figure."""


@dataclass
class Bench:
    """Runs cases one after the other, and keeps each figure as soon as it is measured.

    Attributes:
        seconds: for each timing.
        tell: called with a line about each case without a figure.
        save: called after each figure. Figures of an earlier run, passed as `found`, are not measured again.
        until: no case that is marked `slow` begins after this time (of time.monotonic).
        left_out: by case, why it has no figure.
    """

    limits: Limits
    device: str
    dtype: str
    seed: int = 0
    seconds: float = 0.1
    tell: Callable[[str], None] = lambda _: None
    save: Callable[[Bench], None] = lambda _: None
    until: float = float("inf")
    found: dict[str, Measurement] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, measurement: Measurement) -> Measurement:
        self.found[measurement.name] = measurement
        self.save(self)
        return measurement

    def value(self, name: str) -> float | None:
        return self.found[name].value if name in self.found else None

    def attempt(self, what: str, run: Callable[[], Any], slow: bool = False, name: str = "") -> Any:
        """Run a case. If it fails, report one line, return None, and continue with the other cases.

        Args:
            slow: do not start it after `until`. name: of its figure, which is not measured again if it exists.

        Raises:
            LabError: the failure left the GPU unusable.
        """
        if name in self.found:
            return None
        if slow and time.monotonic() > self.until:
            return self.leave_out(what, "no time left for it")
        try:
            return run()
        except NotHere as error:
            self.leave_out(what, str(error))
        except Exception as error:
            line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
            full = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate" in line
            why = "out of memory" if full else f"{type(error).__name__}: {line[:160]}"
            self.leave_out(what, why)
        if self.device == "cuda":
            try:  # after an illegal address every call fails: this process cannot use the GPU any more
                torch.cuda.synchronize()
            except RuntimeError:
                lost = f"{what} failed and left the GPU unusable for this process ({self.left_out[what]})"
                raise LabError(f"{lost}: find the kernel with compute-sanitizer, docs/PROFILING.md") from None
            torch.cuda.empty_cache()  # the memory of a failed case must not make the next one fail
        return None

    def leave_out(self, what: str, why: str) -> None:
        if why not in self.left_out.values():  # each reason once: a missing package concerns many cases
            self.tell(f"- {what}: {why}")
        self.left_out[what] = why
        self.save(self)

    def results(self) -> dict[str, Any]:
        """For the report of a script."""
        measurements = [*self.limits.measurements(), *self.found.values()]
        return dict(limits=asdict(self.limits), measurements=as_records(measurements), left_out=self.left_out)
