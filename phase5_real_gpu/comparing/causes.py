"""Seven causes of a wrong or slow figure, and the trace that each leaves in a report.

A missing synchronization gives times below the machine's limit. Counting the first call makes the first repeat much longer than
the others. float32 moves twice the bytes of bfloat16. Each cause has a *signature*: a function that searches a report for the trace
(compared with a reference where it needs one) and returns the evidence. A healthy report gives no evidence.

Measurements vary, so a trace must be large: a factor of two or five. Where the report states a fact, such as the path that a
step took, the fact decides.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from labkit.predictions import show_value
from phase5_real_gpu.comparing import report_facts as facts
from phase5_real_gpu.measuring.measurements import Measurement
from phase5_real_gpu.measuring.reference_files import Reference

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
SLOW_PATHS = ("gather", "eager", "python", "torch")


Signature = Callable[[Reference, Reference | None], Iterator[tuple[str, str]]]
"""(report, reference or None) -> pairs of a figure's name ("": all figures) and the evidence; the first evidence is shown."""


@dataclass(frozen=True)
class Cause:
    """A cause of a wrong or slow figure: its effect, its remedy, and the function that finds it."""

    name: str
    explanation: str
    remedy: str
    signature: Signature


@dataclass(frozen=True)
class Finding:
    """A cause that was found, its evidence, and the names of the measurements that it explains (none: all)."""

    cause: Cause
    evidence: str
    names: tuple[str, ...]

    def explains(self, name: str, is_off: bool = True) -> bool:
        """Tell whether the cause explains this figure. A cause of all figures explains those that are off."""
        return name in self.names or (is_off and not self.names)


CAUSES: list[Cause] = []
"""All causes, the most certain first."""


def cause(name: str, explanation: str, remedy: str) -> Callable[[Signature], Signature]:
    """Add the cause with this signature to `CAUSES`."""

    def add(signature: Signature) -> Signature:
        CAUSES.append(Cause(name, explanation, remedy, signature))
        return signature

    return add


def find_causes(report: Reference, reference: Reference | None = None) -> list[Finding]:
    """Find every cause with a trace in the report, the most certain first.

    Args:
        reference: a machine to compare with. None: only causes that need no comparison are found.
    """
    found = []
    for cause in CAUSES:
        if seen := list(cause.signature(report, reference)):
            names = tuple(name for name, _ in seen if name)
            found.append(Finding(cause, seen[0][1], names))
    return found


@cause(
    "missing synchronise",
    "A GPU computes while Python continues. A clock that stops without waiting measures the launch, not the work.",
    "call torch.cuda.synchronize() before each reading of the clock, or use CUDA events",
)
def times_beyond_the_limit(report: Reference, reference: Reference | None) -> Iterator[tuple[str, str]]:
    """Less than half of the shortest possible time. (A CPU's call returns when it is done.)"""
    for m in sorted(report.measurements, key=lambda m: m.share_of_limit or 0, reverse=True):
        if report.device == "gpu" and (m.share_of_limit or 0) > 2:
            allowed = f"this card's {m.limit or 'limit'} allows {facts.show(m, m.floor)} at best"
            yield m.name, f"{m.name} is {facts.show(m)}; {allowed}"


@cause(
    "compile or warm-up inside the timed region",
    "The first call compiles kernels, fills caches and allocates memory. Later calls do not.",
    "make at least one call before the timed ones; report the median",
)
def first_repeat_stands_out(report: Reference, reference: Reference | None) -> Iterator[tuple[str, str]]:
    """The first repeat takes five times as long as the others, and over 20 ms longer: interrupts are shorter and hit any repeat."""
    for m in report.measurements:
        first, *others = facts.repeats_of(m) or [0]
        usual = median(others) if len(others) >= 2 else first
        if first > 5 * usual and first > 2 * max(others) and first - usual > 0.02:
            took = f"the first repeat took {1e3 * first:,.3g} ms, the others {1e3 * usual:,.3g} ms"
            yield m.name, f"{m.name}: {took} ({first / usual:,.0f} times as long)"


@cause(
    "wrong dtype",
    "The time of decode is that of reading its bytes. float32 has twice as many as bfloat16, and uses tensor cores only with TF32.",
    "--dtype bfloat16 (float16 on cards older than compute capability 8.0)",
)
def more_bytes_a_number(report: Reference, reference: Reference | None) -> Iterator[tuple[str, str]]:
    """Wider numbers than the reference on the same kind of device, or float32 on a GPU."""
    for m in facts.our_figures(report):
        mine, twin = m.details.get("dtype"), reference and reference.get(m.name)
        theirs = twin.details.get("dtype") if twin and reference.device == report.device else None
        whose = f"the reference in {theirs}"
        if theirs is None and report.device == "gpu":
            theirs, whose = "bfloat16", "bfloat16 is usual on a GPU"
        if BYTES.get(str(mine), 0) > BYTES.get(str(theirs), 4):
            more = f"{BYTES[mine] // BYTES[theirs]} times the bytes for every weight and key"
            yield m.name, f"{m.name} ran in {mine}, {whose}: {more}"


@cause(
    "eager fallback",
    "The fast path was not available: no CUDA graph, no Triton kernel or no compiled CPU kernel. A slower path ran.",
    "`lab doctor` lists what is missing. A GPU needs Triton, and enforce_eager=False; a CPU needs numba",
)
def slow_path_taken(report: Reference, reference: Reference | None) -> Iterator[tuple[str, str]]:
    """The report names a slow path, and the reference, if there is one, ran on another."""
    for m in facts.our_figures(report):
        path, twin = m.details.get("path"), reference and reference.get(m.name)
        if path in SLOW_PATHS and not (twin and twin.details.get("path") in SLOW_PATHS):
            yield m.name, f"{m.name} ran on the path '{path}', not on the kernel"


@cause(
    "power or clock limit",
    "A GPU that is hot or has a low power limit lowers its clock; other programs take a share of it. All its limits are then lower.",
    "run nvidia-smi -q -d POWER,CLOCK,PERFORMANCE; close other programs, and connect a laptop to its charger",
)
def limits_below_the_same_device(report: Reference, reference: Reference | None) -> Iterator[tuple[str, str]]:
    """The GPU throttled, or its power limit is below the default, or its limits are below those of the same device."""
    gpu = report.environment.get("gpu") or {}
    power = (facts.number_or_none(gpu.get(name)) for name in ("power_limit_w", "default_power_limit_w"))
    clocks = (facts.number_or_none(gpu.get(f"{name}_sm_clock_mhz")) for name in ("p10", "highest", "max"))
    (allowed, usual), (low, high, most) = power, clocks
    up_to = f". Its clock went up to {high:,.0f} of {most:,.0f} MHz" if high and most else ""
    if allowed and usual and allowed < 0.95 * usual:
        yield "", f"the power limit of this card is {allowed:.0f} W, its default is {usual:.0f} W{up_to}"
    if low and high and low < 0.8 * high:
        why = ", ".join(map(str, gpu.get("throttled_by") or ())) or "no reason reported"
        busy = "for a tenth of its busy time, the clock was at"
        yield "", f"{busy} {low:,.0f} MHz or less ({why}){up_to}"
    if reference is None or not facts.same_device(report, reference) or report is reference:
        return
    # Other programs and virtual machines share a CPU, so only a large difference counts.
    enough, device = (0.85, "card") if report.device == "gpu" else (0.5, "processor")
    mine, theirs = report.limits, reference.limits
    pairs = [("reading memory", mine.read_gb_s, theirs.read_gb_s, "GB/s")]
    for dtype, rate in mine.matmul_tflops.items():
        pairs.append((f"{dtype} products", rate, theirs.matmul_tflops.get(dtype), "TFLOP/s"))
    lower = [p for p in pairs if p[1] and p[2] and p[1] < enough * p[2]]
    seen = "; ".join(f"{w}: {show_value(a)} {unit}, the reference {show_value(b)}" for w, a, b, unit in lower)
    if lower:
        yield "", f"the same {device} has lower limits here. {seen}{up_to}"


@cause(
    "small batch",
    "A step reads all weights once, for one request or for fifty. With one request, it reads them for a single token.",
    "let more requests share a step (max_num_seqs), send them at the same time, compare equal batches",
)
def batch_that_does_not_fill(report: Reference, reference: Reference | None) -> Iterator[tuple[str, str]]:
    """A larger batch does not raise the throughput, or the throughput was measured for one request only."""

    def gain(by_batch: dict[int, Measurement]) -> float:
        return max(m.value for m in by_batch.values()) / by_batch[min(by_batch)].value

    for model, by_batch in facts.by_batch_of(report, "throughput").items():
        smallest, largest = min(by_batch), max(by_batch)
        others = facts.by_batch_of(reference, "throughput").get(model, {})
        if largest == 1 and max(others, default=1) >= 8:
            seen = f"{model} was measured for one request at a time, the reference for up to {max(others)}"
            yield by_batch[1].name, f"{seen}. A step for one reads all weights to make a single token"
        if largest >= 8 * smallest and gain(by_batch) < 1.5 and not (others and gain(others) < 2):
            best = max(by_batch.values(), key=lambda m: m.value)
            alone = f"{facts.show(by_batch[smallest])} with {smallest} request{'s' * (smallest > 1)}"
            seen = f"{model} makes {alone} and at most {facts.show(best)} with more: they ran one after the other"
            yield from ((m.name, seen) for batch, m in by_batch.items() if batch > smallest)


@cause(
    "a fixed time in each step",
    "In each step Python schedules, prepares inputs, samples and returns tokens, and the threads of a GEMM wait for each other. "
    "The limits do not include this time, which is most of a small model's step.",
    "close other programs and measure again. If the time stays, it is a property of this CPU; a larger model has a smaller share of it",
)
def fixed_time_in_each_step(report: Reference, reference: Reference | None) -> Iterator[tuple[str, str]]:
    """A step with almost nothing to compute takes over half of the time by which this step exceeds its floor."""

    def step_ms(m: Measurement, value: float) -> float:
        """An ITL unchanged; a throughput as the time of a step of its batch (the end of its name)."""
        return 1e3 * int(m.name.rpartition("b")[2]) / value if m.unit == "tok/s" else value

    for model, by_batch in facts.by_batch_of(report, "itl").items():
        alone = by_batch[min(by_batch)]
        fixed = facts.number_or_none(alone.details.get("fixed_ms")) or 0
        rates = facts.by_batch_of(report, "throughput").get(model, {})
        for m in (*by_batch.values(), *rates.values()):
            is_worse = m.floor and (facts.ratio_of_shares(m, reference and reference.get(m.name)) or 1) <= 0.8
            if is_worse and fixed and fixed > 0.5 * (step_ms(m, m.value) - step_ms(m, m.floor)):
                hollow = "A step with as many layers and next to nothing to read or to multiply took"
                took = f"{hollow} {facts.show(alone, fixed)} in the same minute"
                yield m.name, f"{alone.name} is {facts.show(alone)}. {took}"
