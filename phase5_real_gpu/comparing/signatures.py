"""The traces of the ten causes: what each leaves in a report, and how it is told from noise.

Every machine has noise of its own. So a trace must stand out by a wide margin (twice, five times), and where the
report says what happened (which path was taken, how many steps had a prompt in them), that decides.
"""

import math
import re
from statistics import median
from typing import Any, NamedTuple

from labkit.predictions import show_value
from phase5_real_gpu.measuring.measurements import Measurement
from phase5_real_gpu.measuring.reference_files import Reference

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
SLOW_PATHS = ("gather", "eager", "python", "torch")
OURS = ("ttft-", "throughput-", "itl-", "decode-", "prefill-", "cpu-decode-")  # figures of our own code
LAYERS = {"gpt2": 12, "tinyllama": 22, "llama3-8b": 32, "tales": 6}
KERNELS_A_LAYER = 12  # at least: norms, linear layers, rotation, writing keys, attention, activation, sums
# Whose version may explain a figure, and where it stands in `environment`. A CPU has only the first.
VERSIONS = (("torch", "packages", "torch"), ("triton", "packages", "triton"),
            ("driver", "gpu", "driver"), ("CUDA", "gpu", "cuda"))  # fmt: skip


class Trace(NamedTuple):
    """The evidence, with figures, and the names of the measurements that it explains (none: all)."""

    text: str
    names: tuple[str, ...] = ()


def ratio_of_shares(mine: Measurement, theirs: Measurement | None) -> float | None:
    """My fraction of my machine's limit over theirs of theirs: 1.0 is as good, 0.5 half as good.

    None where one of the two has no limit to compare it with.
    """
    if theirs is None or (mine.unit, mine.better) != (theirs.unit, theirs.better):
        return None
    if mine.share_of_limit is None or theirs.share_of_limit is None:
        return None
    return mine.share_of_limit / theirs.share_of_limit


def same_device(a: Reference, b: Reference) -> bool:
    """The same card; or the same processor with as many cores in use."""
    if (a.device, a.device_name) != (b.device, b.device_name):
        return False
    return a.device == "gpu" or all(
        a.environment.get(k) == b.environment.get(k) for k in ("cores", "threads")
    )


# ---------------------------------------------------------------------- reading a report


def _ours(report: Reference) -> list[Measurement]:
    return [m for m in report.measurements if m.name.startswith(OURS)]


def _series(report: Reference | None, what: str, by: str) -> dict[str, dict[int, Measurement]]:
    """Figures of each model by a size: {"tales": {1: throughput-tales-b1, 16: throughput-tales-b16}}."""
    found: dict[str, dict[int, Measurement]] = {}
    for m in report.measurements if report else ():
        if match := re.fullmatch(rf"{what}-(.+)-{by}(\d{{1,9}})", m.name):
            found.setdefault(match[1], {})[int(match[2])] = m
    return found


def _twin(report: Reference | None, name: str) -> Measurement | None:
    return report.get(name) if report else None


def _number(value: Any) -> float | None:
    """A number above 0, or None: details are whatever a file holds."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and value > 0 else None


def _repeats(m: Measurement) -> list[float]:
    """Seconds of every repeat, in order, if the report has them."""
    seconds = m.details.get("seconds")
    return seconds if isinstance(seconds, list) and all(map(_number, seconds)) else []


def _show(m: Measurement, value: float | None = None) -> str:
    return show_value(float(m.value if value is None else value), m.unit)


def _version(text: Any) -> tuple[int, int] | None:
    """Major and minor: "3.7.1" -> (3, 7). Later parts seldom matter for speed."""
    match = re.match(r"(\d{1,9})\.(\d{1,9})", text) if isinstance(text, str) else None
    return (int(match[1]), int(match[2])) if match else None


# ---------------------------------------------------------------------- the signatures


def times_beyond_the_limit(report: Reference, reference: Reference | None) -> Trace | None:
    """Missing synchronise: less than half of the shortest possible time. (A CPU's call returns when it is done.)"""
    impossible = [m for m in report.measurements if report.device == "gpu" and (m.share_of_limit or 0) > 2]
    if not impossible:
        return None
    worst = max(impossible, key=lambda m: m.share_of_limit or 0)
    text = f"{worst.name} is {_show(worst)}; this card's {worst.limit or 'limit'} allows {_show(worst, worst.floor)} at best"
    return Trace(text, tuple(m.name for m in impossible))


def first_repeat_stands_out(report: Reference, reference: Reference | None) -> Trace | None:
    """Compiling or warming up inside the timed region: the first repeat takes five times the others."""
    found = []
    for m in report.measurements:
        first, *others = _repeats(m) or [0]
        if len(others) < 2:
            continue
        usual = median(others)
        # A hiccup of the system is shorter than 20 ms, and hits any repeat, not the first alone.
        if first > 5 * usual and first > 2 * max(others) and first - usual > 0.02:
            found.append((first / usual, first, usual, m.name))
    if not found:
        return None
    times, first, usual, name = max(found)
    text = f"{name}: the first repeat took {1e3 * first:,.3g} ms, the others {1e3 * usual:,.3g} ms ({times:,.0f} times less)"
    return Trace(text, tuple(name for *_, name in found))


def more_bytes_a_number(report: Reference, reference: Reference | None) -> Trace | None:
    """Wrong dtype: wider numbers than the reference on the same kind of device, or float32 on a GPU."""
    found = []
    for m in _ours(report):
        mine, other = m.details.get("dtype"), _twin(reference, m.name)
        theirs = other.details.get("dtype") if other and reference.device == report.device else None
        if theirs is None and report.device == "gpu":
            theirs = "bfloat16"
        if BYTES.get(str(mine), 0) > BYTES.get(str(theirs), 4):
            found.append((m.name, mine, theirs))
    if not found:
        return None
    name, mine, theirs = found[0]
    times = BYTES[mine] // BYTES[theirs]
    whose = f"the reference in {theirs}" if _twin(reference, name) else f"{theirs} is usual on a GPU"
    return Trace(
        f"{name} ran in {mine}, {whose}: {times} times the bytes for every weight and key",
        tuple(n for n, *_ in found),
    )


def slow_path_taken(report: Reference, reference: Reference | None) -> Trace | None:
    """Eager fallback: the report says that a slow path ran, and the reference took another one."""
    taken = [m for m in _ours(report) if m.details.get("path") in SLOW_PATHS]
    others = [_twin(reference, m.name) for m in taken]
    taken = [m for m, o in zip(taken, others) if not (o and o.details.get("path") in SLOW_PATHS)]
    if not taken:
        return None
    text = f"{taken[0].name} ran on the path '{taken[0].details['path']}', not on the kernel"
    return Trace(text, tuple(m.name for m in taken))


def limits_below_the_same_device(report: Reference, reference: Reference | None) -> Trace | None:
    """Power or clock limit: the card throttled or may draw less than its own limit, or its ceilings are below its twin's."""
    gpu = report.environment.get("gpu") or {}
    keys = (
        "power_limit_w",
        "default_power_limit_w",
        "p10_sm_clock_mhz",
        "highest_sm_clock_mhz",
        "max_sm_clock_mhz",
    )
    allowed, usual, low, high, most = (_number(gpu.get(key)) for key in keys)
    clocks = f" Its clock went up to {high:,.0f} of {most:,.0f} MHz." if high and most else ""
    if allowed and usual and allowed < 0.95 * usual:
        return Trace(f"this card may draw {allowed:.0f} W; it was built for {usual:.0f} W.{clocks}")
    if low and high and low < 0.8 * high:
        why = ", ".join(map(str, gpu.get("throttled_by") or ())) or "it does not say why"
        return Trace(
            f"while it was busy, a tenth of the time its clock was at {low:,.0f} MHz or less ({why}).{clocks}"
        )
    if reference is None or not same_device(report, reference) or report is reference:
        return None
    # A processor has neighbours and other programs, so only a gross difference says something.
    enough, device = (0.85, "card") if report.device == "gpu" else (0.5, "processor")
    mine, theirs = report.limits, reference.limits
    pairs = [("reading memory", mine.read_gb_s, theirs.read_gb_s, "GB/s")]
    pairs += [
        (f"{d} products", rate, theirs.matmul_tflops.get(d), "TFLOP/s")
        for d, rate in mine.matmul_tflops.items()
    ]
    lower = [p for p in pairs if p[1] and p[2] and p[1] < enough * p[2]]
    seen = "; ".join(f"{w}: {show_value(a)} {unit}, the reference {show_value(b)}" for w, a, b, unit in lower)
    return Trace(f"the same {device}, and lower ceilings. {seen}.{clocks}") if lower else None


def batch_that_does_not_fill(report: Reference, reference: Reference | None) -> Trace | None:
    """Small batch: throughput that a larger batch does not raise, or was measured for one request only."""

    def gain(by_batch: dict[int, Measurement]) -> float:
        return max(m.value for m in by_batch.values()) / by_batch[min(by_batch)].value

    for model, by_batch in _series(report, "throughput", "b").items():
        smallest, largest = min(by_batch), max(by_batch)
        others = _series(reference, "throughput", "b").get(model, {})
        if largest == 1 and max(others, default=1) >= 8:
            return Trace(
                f"{model} was measured for one request at a time, the reference for up to {max(others)}. A step for one reads all "
                "weights to make a single token",
                tuple(m.name for m in by_batch.values()),
            )
        if largest >= 8 * smallest and gain(by_batch) < 1.5 and not (others and gain(others) < 2):
            best = max(by_batch.values(), key=lambda m: m.value)
            return Trace(
                f"{model} makes {_show(by_batch[smallest])} with {smallest} request{'s' * (smallest > 1)} and at most "
                f"{_show(best)} with more: they ran one after the other",
                tuple(m.name for b, m in by_batch.items() if b > smallest),
            )
    return None


def spikes_between_tokens(report: Reference, reference: Reference | None) -> Trace | None:
    """Prefill mixed into decode: now and then a token takes several times as long as the others.

    Other programs make such spikes as well. A report that counts the steps with a prompt in them decides.
    """
    for m in report.measurements:
        mixed = m.details.get("prefill_steps")
        if not m.name.startswith("itl-") or mixed == 0:
            continue
        gaps = _repeats(m)[1:]  # the first gap is another cause's
        usual = median(gaps) if len(gaps) >= 20 else math.inf
        spikes = [g for g in gaps if g > 3 * usual]
        if len(spikes) >= max(2, 0.01 * len(gaps)):  # the system's own hiccups mostly come alone
            counted = f"; {mixed} steps had a prompt in them" if mixed else ""
            return Trace(
                f"{m.name}: {len(spikes)} of {len(gaps)} tokens took {median(spikes) / usual:.1f} times as long as the "
                f"others ({1e3 * median(spikes):,.3g} ms against {1e3 * usual:,.3g}){counted}",
                (m.name,),
            )
    return None


def launches_fill_the_step(report: Reference, reference: Reference | None) -> Trace | None:
    """A CPU-bound launch: a step for one request takes as long as asking for its kernels, one by one."""
    launch_us = report.limits.launch_us
    if report.device != "gpu" or not launch_us:
        return None
    for model, layers in LAYERS.items():
        m = report.get(f"itl-{model}-b1")
        if m is None or m.details.get("path") in (None, "graph") or (m.share_of_limit or 1) > 0.5:
            continue
        asking = KERNELS_A_LAYER * layers * launch_us / 1e3
        if 0.4 < asking / m.value < 2.5:
            return Trace(
                f"{m.name} is {_show(m)}; about {KERNELS_A_LAYER * layers} launches of {show_value(launch_us)} us are {asking:.3g} ms, and "
                f"reading the weights would take {_show(m, m.floor)}",
                (m.name,),
            )
    return None


def fixed_time_in_each_step(report: Reference, reference: Reference | None) -> Trace | None:
    """Half or more of a step's time beyond its floor is there when there is next to nothing to compute, too."""

    def step_ms(m: Measurement, value: float) -> float:
        """An ITL as it is, a throughput by its batch, which ends its name."""
        return 1e3 * int(m.name.rpartition("b")[2]) / value if m.unit == "tok/s" else value

    for model, by_batch in _series(report, "itl", "b").items():
        alone = by_batch[min(by_batch)]
        fixed = _number(alone.details.get("fixed_ms"))
        rates = _series(report, "throughput", "b").get(model, {})
        worse = [m for m in (*by_batch.values(), *rates.values()) if m.floor]
        worse = [m for m in worse if (ratio_of_shares(m, _twin(reference, m.name)) or 1) <= 0.8]
        explained = [
            m.name for m in worse if fixed and fixed > 0.5 * (step_ms(m, m.value) - step_ms(m, m.floor))
        ]
        if explained:
            return Trace(
                f"{alone.name} is {_show(alone)}. A step with as many layers and next to nothing to read or to multiply took "
                f"{_show(alone, fixed)} in the same minute",
                tuple(explained),
            )
    return None


def older_software(report: Reference, reference: Reference | None) -> Trace | None:
    """Old driver or Triton: older than the reference's, and something is slower than it should be."""
    if reference is None or report.device != reference.device:
        return None
    ratios = [ratio_of_shares(m, reference.get(m.name)) for m in report.measurements]
    if not any(r and r < 0.7 for r in ratios):
        return None
    older = []
    for name, where, key in VERSIONS if report.device == "gpu" else VERSIONS[:1]:
        mine, theirs = ((r.environment.get(where) or {}).get(key) for r in (report, reference))
        if _version(mine) and _version(theirs) and _version(mine) < _version(theirs):
            older.append(f"{name} {mine} (the reference has {theirs})")
    return Trace("older here: " + ", ".join(older)) if older else None
