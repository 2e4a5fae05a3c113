"""Compares two machines: each figure as a share of its own machine's limit, with a verdict."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from phase5_real_gpu.comparing.causes import Finding, find_causes
from phase5_real_gpu.comparing.report_facts import ratio_of_shares, same_device
from phase5_real_gpu.measuring.measurements import Limits, Measurement
from phase5_real_gpu.measuring.reference_files import Reference

Verdict = Literal[
    "as expected", "slower, as your limits are", "faster than expected", "slower than your limits explain",
    "not comparable",
]  # fmt: skip
CLOSE = 1.25  # shares within this factor count as equal
CLOSE_QUICK = 1.6  # with few repeats
CEILINGS = ("read-bandwidth", "copy-bandwidth", "matmul-", "launch", "h2d-", "d2h-", "cache-", "l1-", "l2-")


@dataclass(frozen=True)
class Line:
    """One figure of mine beside the reference's.

    Attributes:
        mine, theirs: the measurements.
        expected: the value at which my machine reaches the reference's share of its limit. None if the two cannot be compared.
        verdict: see `judge`.
    """

    mine: Measurement
    theirs: Measurement
    expected: float | None
    verdict: Verdict

    @property
    def is_off(self) -> bool:
        return self.verdict == "slower than your limits explain"


@dataclass(frozen=True)
class Comparison:
    """All lines, and the causes that were found. `alone`: my figures that the reference does not have."""

    mine: Reference
    theirs: Reference
    lines: tuple[Line, ...]
    alone: tuple[Measurement, ...]
    findings: tuple[Finding, ...]

    @property
    def off(self) -> list[Line]:
        return [line for line in self.lines if line.is_off]


def compare(mine: Reference, theirs: Reference) -> Comparison:
    """Compare every figure that both have. Limits get no line: they explain the lines."""
    close = CLOSE_QUICK if mine.quick or theirs.quick else CLOSE
    figures = [m for m in mine.measurements if not is_ceiling(m)]
    same = same_device(mine, theirs)
    lines = [judge(m, other, close, same) for m in figures if (other := theirs.get(m.name))]
    if theirs.origin == "article":  # without hardware and method, its figures are never a verdict
        lines = [replace(line, verdict="not comparable") for line in lines]
    alone = [m for m in figures if theirs.get(m.name) is None]
    return Comparison(mine, theirs, tuple(lines), tuple(alone), tuple(find_causes(mine, theirs)))


def judge(mine: Measurement, theirs: Measurement, close: float = CLOSE, same: bool = False) -> Line:
    """A verdict on one figure.

    With floors, the shares of the limits decide. Without floors, only figures of the same device can be compared, by value.

    Args:
        close: factor within which two shares count as equal.
        same: whether both were measured on the same kind of device.
    """
    how_good = ratio_of_shares(mine, theirs)
    if mine.unit != theirs.unit or mine.better != theirs.better or (how_good is None and not same):
        return Line(mine, theirs, None, "not comparable")
    by_value = theirs.value / mine.value if mine.better == "lower" else mine.value / theirs.value
    if how_good is None:
        how_good, expected = by_value, theirs.value
    else:
        expected = mine.value * how_good if mine.better == "lower" else mine.value / how_good
    verdict: Verdict = "slower, as your limits are" if by_value < 1 / close else "as expected"
    if how_good > close:
        verdict = "faster than expected"
    elif how_good < 1 / close:
        verdict = "slower than your limits explain"
    return Line(mine, theirs, expected, verdict)


def is_ceiling(m: Measurement) -> bool:
    return m.name.startswith(CEILINGS) and m.floor is None


def pick_reference(mine: Reference, references: Iterable[Reference]) -> Reference | None:
    """The most similar reference; None if there are none. In this order: the same kind of device, not an article, figures in common,
    the same device, measured rather than published, similar memory bandwidth, the number of figures in common."""

    def similarity(other: Reference) -> tuple[bool, bool, bool, bool, bool, float, int]:
        common = sum(other.get(m.name) is not None and not is_ceiling(m) for m in mine.measurements)
        pace = (mine.limits.read_gb_s or 1) / (other.limits.read_gb_s or 1)
        like, same = -round(abs(math.log(pace)), 1), same_device(mine, other)
        known, measured = other.origin != "article", other.origin == "measured"
        return mine.device == other.device, known, common > 0, same, measured, like, common

    return max(references, key=similarity, default=None)


def like_cards(mine: Reference, references: Iterable[Reference]) -> list[Reference]:
    """The published references of the same GPU model in any form: "NVIDIA H100 PCIe" is like "NVIDIA H100 80GB HBM3"."""
    return [
        r for r in references if r.origin == "published" and mine.device == "gpu" and _kind(r) == _kind(mine)
    ]


def _kind(report: Reference) -> str:
    """The card's model in its driver's name: "NVIDIA H100 80GB HBM3" -> "H100", "NVIDIA GeForce RTX 4090" -> "RTX 4090"."""
    name = re.sub("NVIDIA|GeForce|Tesla|-", " ", report.device_name)
    return re.match(r"(RTX (PRO )?)?\w*", " ".join(name.split()))[0]


def imagine(machine: Reference, factor: float) -> Reference:
    """The same machine with every figure and every floor `factor` times as slow."""

    def slower(m: Measurement) -> Measurement:
        times = factor if m.better == "lower" else 1 / factor
        return replace(m, value=m.value * times, floor=m.floor and m.floor * times)

    return replace(
        machine,
        name=f"{machine.name}-slower",
        environment={"cpu": f"imagined, {factor:g} times as slow", "gpu": None},
        limits=Limits(),
        measurements=tuple(slower(m) for m in machine.measurements),
    )
