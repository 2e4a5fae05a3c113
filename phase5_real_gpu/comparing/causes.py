"""Why a figure is off: ten causes, each with the trace that it leaves in a report.

A cause cannot be seen, only its trace. Forget to wait for the GPU, and times come out that no machine could reach. Count the
first call, and one repeat stands out. Send float32, and twice the bytes move. So each cause has a *signature*: a function that
looks for the trace in a report, beside a reference where it needs one, and says what it found. No trace, no cause: a healthy
report names none.

Every machine has noise of its own. So a trace must stand out by a wide margin (twice, five times), and where the report says
what happened (which path was taken, how many steps had a prompt in them), that decides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from labkit.predictions import show_value
from phase5_real_gpu.comparing.report_facts import (
    by_batch_of,
    number_or_none,
    our_figures,
    ratio_of_shares,
    repeats_of,
    same_device,
    show,
    twin_of,
    version_of,
)
from phase5_real_gpu.measuring.engine_cases import MODEL_NAMES, bench_model
from phase5_real_gpu.measuring.measurements import Measurement
from phase5_real_gpu.measuring.reference_files import Reference

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
SLOW_PATHS = ("gather", "eager", "python", "torch")
KERNELS_A_LAYER = 12  # at least: norms, linear layers, rotation, writing keys, attention, activation, sums
# Whose version may explain a figure, and where it stands in `environment`. A CPU has only the first.
VERSIONS = (("torch", "packages", "torch"), ("triton", "packages", "triton"),
            ("driver", "gpu", "driver"), ("CUDA", "gpu", "cuda"))  # fmt: skip


class Trace(NamedTuple):
    """The evidence, with figures, and the names of the measurements that it explains (none: all)."""

    text: str
    names: tuple[str, ...] = ()


Signature = Callable[[Reference, Reference | None], Trace | None]


@dataclass(frozen=True)
class Cause:
    """A reason why a figure is off: how it makes a figure wrong, what to do, and how it is found.

    Attributes:
        signature: (report, reference or None) -> what was seen of it, or None.
    """

    name: str
    explanation: str
    remedy: str
    signature: Signature


@dataclass(frozen=True)
class Finding:
    """A cause that left its trace."""

    cause: Cause
    trace: Trace

    def explains(self, name: str, is_off: bool = True) -> bool:
        """Whether it has to do with this figure. What concerns all figures explains those that are off."""
        return name in self.trace.names or (is_off and not self.trace.names)


CAUSES: list[Cause] = []
"""All of them; the surest first."""


def cause(name: str, explanation: str, remedy: str) -> Callable[[Signature], Signature]:
    """Adds a signature's cause to `CAUSES`."""

    def add(signature: Signature) -> Signature:
        CAUSES.append(Cause(name, explanation, remedy, signature))
        return signature

    return add


def find_causes(report: Reference, reference: Reference | None = None) -> list[Finding]:
    """Every cause whose trace is in the report; the surest first.

    Args:
        reference: a machine to compare with. Without one, only causes that show by themselves are found.
    """
    found = ((cause, cause.signature(report, reference)) for cause in CAUSES)
    return [Finding(cause, trace) for cause, trace in found if trace]


@cause(
    "missing synchronise",
    "A GPU works on while Python goes on. Stop the clock without waiting, and you time the asking, not the work.",
    "call torch.cuda.synchronize() before both readings of the clock, or use CUDA events",
)
def times_beyond_the_limit(report: Reference, reference: Reference | None) -> Trace | None:
    """Less than half of the shortest possible time. (A CPU's call returns when it is done.)"""
    impossible = [m for m in report.measurements if report.device == "gpu" and (m.share_of_limit or 0) > 2]
    if not impossible:
        return None
    worst = max(impossible, key=lambda m: m.share_of_limit)
    text = f"{worst.name} is {show(worst)}; this card's {worst.limit or 'limit'} allows {show(worst, worst.floor)} at best"
    return Trace(text, tuple(m.name for m in impossible))


@cause(
    "compile or warm-up inside the timed region",
    "The first call compiles kernels, fills caches and asks the system for memory. None of that happens again.",
    "make one call or more that do not count, then time; report the median",
)
def first_repeat_stands_out(report: Reference, reference: Reference | None) -> Trace | None:
    """The first repeat takes five times the others. A hiccup of the system is shorter than 20 ms, and hits any repeat."""
    found = []
    for m in report.measurements:
        first, *others = repeats_of(m) or [0]
        usual = median(others) if len(others) >= 2 else first
        if first > 5 * usual and first > 2 * max(others) and first - usual > 0.02:
            found.append((first / usual, first, usual, m.name))
    if not found:
        return None
    times, first, usual, name = max(found)
    text = f"{name}: the first repeat took {1e3 * first:,.3g} ms, the others {1e3 * usual:,.3g} ms ({times:,.0f} times less)"
    return Trace(text, tuple(name for *_, name in found))


@cause(
    "wrong dtype",
    "Decode takes the time that its bytes take. float32 has twice those of bfloat16, and no fast matrix units unless TF32 is allowed.",
    "--dtype bfloat16 (float16 on cards older than compute capability 8.0)",
)
def more_bytes_a_number(report: Reference, reference: Reference | None) -> Trace | None:
    """Wider numbers than the reference on the same kind of device, or float32 on a GPU."""
    found = []
    for m in our_figures(report):
        mine, other = m.details.get("dtype"), twin_of(reference, m.name)
        theirs = other.details.get("dtype") if other and reference.device == report.device else None
        if theirs is None and report.device == "gpu":
            theirs = "bfloat16"
        if BYTES.get(str(mine), 0) > BYTES.get(str(theirs), 4):
            found.append((m.name, mine, theirs))
    if not found:
        return None
    name, mine, theirs = found[0]
    whose = f"the reference in {theirs}" if twin_of(reference, name) else f"{theirs} is usual on a GPU"
    more = f"{BYTES[mine] // BYTES[theirs]} times the bytes for every weight and key"
    return Trace(f"{name} ran in {mine}, {whose}: {more}", tuple(n for n, *_ in found))


@cause(
    "eager fallback",
    "The fast way was not available, so a general one ran: no CUDA graph, no Triton kernel, no compiled CPU kernel.",
    "`lab doctor` says what is missing (a GPU: Triton and no enforce_eager; a CPU: numba)",
)
def slow_path_taken(report: Reference, reference: Reference | None) -> Trace | None:
    """The report says that a slow path ran, and the reference took another one."""

    def slow(m: Measurement | None) -> bool:
        return m is not None and m.details.get("path") in SLOW_PATHS

    taken = [m for m in our_figures(report) if slow(m) and not slow(twin_of(reference, m.name))]
    if not taken:
        return None
    text = f"{taken[0].name} ran on the path '{taken[0].details['path']}', not on the kernel"
    return Trace(text, tuple(m.name for m in taken))


@cause(
    "power or clock limit",
    "A card that may draw less, or is hot, or shares its machine, clocks lower. Then all ceilings sink together.",
    "look at nvidia-smi -q -d POWER,CLOCK,PERFORMANCE; on a CPU close other programs and plug in the laptop",
)
def limits_below_the_same_device(report: Reference, reference: Reference | None) -> Trace | None:
    """The card throttled, or may draw less power than it was built for, or its ceilings are below its twin's."""
    gpu = report.environment.get("gpu") or {}
    names = (
        "power_limit_w",
        "default_power_limit_w",
        "p10_sm_clock_mhz",
        "highest_sm_clock_mhz",
        "max_sm_clock_mhz",
    )
    allowed, usual, low, high, most = (number_or_none(gpu.get(name)) for name in names)
    clocks = f". Its clock went up to {high:,.0f} of {most:,.0f} MHz" if high and most else ""
    if allowed and usual and allowed < 0.95 * usual:
        return Trace(f"this card may draw {allowed:.0f} W; it was built for {usual:.0f} W{clocks}")
    if low and high and low < 0.8 * high:
        why = ", ".join(map(str, gpu.get("throttled_by") or ())) or "it does not say why"
        return Trace(
            f"while it was busy, a tenth of the time its clock was at {low:,.0f} MHz or less ({why}){clocks}"
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
    return Trace(f"the same {device}, and lower ceilings. {seen}{clocks}") if lower else None


@cause(
    "small batch",
    "A step reads all weights, for one request or for fifty. With one, nothing shares the reading.",
    "let more requests share a step (max_num_seqs), send them at the same time, compare equal batches",
)
def batch_that_does_not_fill(report: Reference, reference: Reference | None) -> Trace | None:
    """Throughput that a larger batch does not raise, or was measured for one request only."""

    def gain(by_batch: dict[int, Measurement]) -> float:
        return max(m.value for m in by_batch.values()) / by_batch[min(by_batch)].value

    for model, by_batch in by_batch_of(report, "throughput").items():
        smallest, largest = min(by_batch), max(by_batch)
        others = by_batch_of(reference, "throughput").get(model, {})
        if largest == 1 and max(others, default=1) >= 8:
            text = f"{model} was measured for one request at a time, the reference for up to {max(others)}. A step for one reads "
            return Trace(text + "all weights to make a single token", (by_batch[1].name,))
        if largest >= 8 * smallest and gain(by_batch) < 1.5 and not (others and gain(others) < 2):
            best = max(by_batch.values(), key=lambda m: m.value)
            text = f"{model} makes {show(by_batch[smallest])} with {smallest} request{'s' * (smallest > 1)} and at most "
            text += f"{show(best)} with more: they ran one after the other"
            return Trace(text, tuple(m.name for b, m in by_batch.items() if b > smallest))
    return None


@cause(
    "prefill mixed into decode",
    "A step that also computes another request's prompt takes longer, and all requests in it wait.",
    "time ITL with no new arrivals; on a server lower max_num_batched_tokens or long_prefill_token_threshold",
)
def spikes_between_tokens(report: Reference, reference: Reference | None) -> Trace | None:
    """Now and then a token takes several times as long as the others.

    Other programs make such spikes as well. A report that counts the steps with a prompt in them decides.
    """
    for m in report.measurements:
        mixed = m.details.get("prefill_steps")
        gaps = repeats_of(m)[1:]  # the first gap is another cause's
        if not m.name.startswith("itl-") or mixed == 0 or len(gaps) < 20:
            continue
        usual = median(gaps)
        spikes = [g for g in gaps if g > 3 * usual]
        if len(spikes) >= max(2, 0.01 * len(gaps)):  # the system's own hiccups mostly come alone
            counted = f"; {mixed} steps had a prompt in them" if mixed else ""
            text = f"{m.name}: {len(spikes)} of {len(gaps)} tokens took {median(spikes) / usual:.1f} times as long as the others "
            text += f"({1e3 * median(spikes):,.3g} ms against {1e3 * usual:,.3g}){counted}"
            return Trace(text, (m.name,))
    return None


@cause(
    "a CPU-bound launch",
    "Python asks for each small kernel by itself. At batch 1 the GPU is done before the next one is asked for.",
    "CUDA graphs (on by default in GPURunner); a faster processor core helps as well",
)
def launches_fill_the_step(report: Reference, reference: Reference | None) -> Trace | None:
    """A step for one request takes as long as asking for its kernels, one by one."""
    launch_us = report.limits.launch_us
    for model in MODEL_NAMES if launch_us and report.device == "gpu" else ():
        m = report.get(f"itl-{model}-b1")
        if m is None or m.details.get("path") in (None, "graph") or (m.share_of_limit or 1) > 0.5:
            continue
        launches = KERNELS_A_LAYER * bench_model(model).config.num_layers
        asking = launches * launch_us / 1e3
        if 0.4 < asking / m.value < 2.5:
            text = f"{m.name} is {show(m)}; about {launches} launches of {show_value(launch_us)} us are {asking:.3g} ms, and "
            return Trace(text + f"reading the weights would take {show(m, m.floor)}", (m.name,))
    return None


@cause(
    "a fixed time in each step",
    "In each step Python decides, prepares, samples and hands out, and threads that share a product wait for each other. "
    "No limit of the table says how quickly a machine does that, and a step of a small model is mostly that.",
    "close other programs and measure again. If it stays, it is this processor's own; a larger model shows it less",
)
def fixed_time_in_each_step(report: Reference, reference: Reference | None) -> Trace | None:
    """Half or more of a step's time beyond its floor is there when there is next to nothing to compute, too."""

    def step_ms(m: Measurement, value: float) -> float:
        """An ITL as it is, a throughput by its batch, which ends its name."""
        return 1e3 * int(m.name.rpartition("b")[2]) / value if m.unit == "tok/s" else value

    for model, by_batch in by_batch_of(report, "itl").items():
        alone = by_batch[min(by_batch)]
        fixed = number_or_none(alone.details.get("fixed_ms")) or 0
        rates = by_batch_of(report, "throughput").get(model, {})
        worse = [m for m in (*by_batch.values(), *rates.values()) if m.floor]
        worse = [m for m in worse if (ratio_of_shares(m, twin_of(reference, m.name)) or 1) <= 0.8]
        explained = [m.name for m in worse if fixed > 0.5 * (step_ms(m, m.value) - step_ms(m, m.floor))]
        if fixed and explained:
            text = f"{alone.name} is {show(alone)}. A step with as many layers and next to nothing to read or to multiply took "
            return Trace(text + f"{show(alone, fixed)} in the same minute", tuple(explained))
    return None


@cause(
    "old driver or Triton",
    "Newer compilers use newer instructions of the card, and newer drivers start kernels sooner.",
    "update to the versions of the reference, then measure again",
)
def older_software(report: Reference, reference: Reference | None) -> Trace | None:
    """Older than the reference's, and something is slower than it should be."""
    if reference is None or report.device != reference.device:
        return None
    ratios = [ratio_of_shares(m, reference.get(m.name)) for m in report.measurements]
    older = []
    for name, where, key in VERSIONS if report.device == "gpu" else VERSIONS[:1]:
        mine, theirs = ((r.environment.get(where) or {}).get(key) for r in (report, reference))
        if version_of(mine) and version_of(theirs) and version_of(mine) < version_of(theirs):
            older.append(f"{name} {mine} (the reference has {theirs})")
    return Trace("older here: " + ", ".join(older)) if older and any(r and r < 0.7 for r in ratios) else None
