"""Reads facts from a report for the search for causes. Its details come from a file and are not checked."""

import re
from typing import Any

from labkit.predictions import show_value
from phase5_real_gpu.measuring.measurements import Measurement
from phase5_real_gpu.measuring.reference_files import Reference

OURS = ("ttft-", "throughput-", "itl-", "decode-", "prefill-", "cpu-decode-")  # figures of our own code


def ratio_of_shares(mine: Measurement, theirs: Measurement | None) -> float | None:
    """My share of my machine's limit, divided by their share of theirs; None if one of the two has no floor."""
    if theirs is None or (mine.unit, mine.better) != (theirs.unit, theirs.better):
        return None
    if mine.share_of_limit is None or theirs.share_of_limit is None:
        return None
    return mine.share_of_limit / theirs.share_of_limit


def same_device(a: Reference, b: Reference) -> bool:
    """The same card; or the same processor with as many cores in use."""
    facts = () if a.device == "gpu" else ("cores", "threads")
    same = (a.device, a.device_name) == (b.device, b.device_name)
    return same and all(a.environment.get(k) == b.environment.get(k) for k in facts)


def our_figures(report: Reference) -> list[Measurement]:
    return [m for m in report.measurements if m.name.startswith(OURS)]


def by_batch_of(report: Reference | None, what: str) -> dict[str, dict[int, Measurement]]:
    """Figures of each model by the batch: {"tales": {1: throughput-tales-b1, 16: throughput-tales-b16}}."""
    found: dict[str, dict[int, Measurement]] = {}
    for m in report.measurements if report else ():
        if match := re.fullmatch(rf"{what}-(.+)-b(\d{{1,9}})", m.name):
            found.setdefault(match[1], {})[int(match[2])] = m
    return found


def number_or_none(value: Any) -> float | None:
    """The value if it is a number above 0, else None."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and value > 0 else None


def repeats_of(m: Measurement) -> list[float]:
    """Seconds of every repeat, in order, if the report has them."""
    seconds = m.details.get("seconds")
    return seconds if isinstance(seconds, list) and all(map(number_or_none, seconds)) else []


def show(m: Measurement, value: float | None = None) -> str:
    return show_value(float(m.value if value is None else value), m.unit)
