"""Why a figure is off: seven causes, each with the trace that it leaves in a report.

A cause cannot be seen, only its trace. Forget to wait for the GPU, and times come out that no machine could reach. Count the
first call, and one repeat stands out. Send float32, and twice the bytes move. So each cause has a *signature*: a function that
looks for the trace in a report, beside a reference where it needs one, and says what it found. No trace, no cause: a healthy
report names none.

Every machine has noise of its own. So a trace must stand out by a wide margin (twice, five times), and where the report says
what happened (which path was taken), that decides.
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
"""(report, reference or None) -> each figure that bears the trace ("": all of them), and the evidence. That of the first is shown."""


@dataclass(frozen=True)
class Cause:
    """A reason why a figure is off: how it makes a figure wrong, what to do, and how it is found."""

    name: str
    explanation: str
    remedy: str
    signature: Signature


@dataclass(frozen=True)
class Finding:
    """A cause that left its trace: the evidence, with figures, and the names of the measurements that it explains (none: all)."""

    cause: Cause
    evidence: str
    names: tuple[str, ...]

    def explains(self, name: str, is_off: bool = True) -> bool:
        """Whether it has to do with this figure. What concerns all figures explains those that are off."""
        return name in self.names or (is_off and not self.names)


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
    found = []
    for cause in CAUSES:
        if seen := list(cause.signature(report, reference)):
            names = tuple(name for name, _ in seen if name)
            found.append(Finding(cause, seen[0][1], names))
    return found


@cause(
    "missing synchronise",
    "A GPU works on while Python goes on. Stop the clock without waiting, and you time the asking, not the work.",
    "call torch.cuda.synchronize() before both readings of the clock, or use CUDA events",
)
def times_beyond_the_limit(report: Reference, reference: Reference | None) -> Iterator[tuple[str, str]]:
    """Less than half of the shortest possible time. (A CPU's call returns when it is done.)"""
    for m in sorted(report.measurements, key=lambda m: m.share_of_limit or 0, reverse=True):
        if report.device == "gpu" and (m.share_of_limit or 0) > 2:
            allowed = f"this card's {m.limit or 'limit'} allows {facts.show(m, m.floor)} at best"
            yield m.name, f"{m.name} is {facts.show(m)}; {allowed}"


@cause(
    "compile or warm-up inside the timed region",
    "The first call compiles kernels, fills caches and asks the system for memory. None of that happens again.",
    "make one call or more that do not count, then time; report the median",
)
def first_repeat_stands_out(report: Reference, reference: Reference | None) -> Iterator[tuple[str, str]]:
    """The first repeat takes five times the others. A hiccup of the system is shorter than 20 ms, and hits any repeat."""
    for m in report.measurements:
        first, *others = facts.repeats_of(m) or [0]
        usual = median(others) if len(others) >= 2 else first
        if first > 5 * usual and first > 2 * max(others) and first - usual > 0.02:
            took = f"the first repeat took {1e3 * first:,.3g} ms, the others {1e3 * usual:,.3g} ms"
            yield m.name, f"{m.name}: {took} ({first / usual:,.0f} times less)"


@cause(
    "wrong dtype",
    "Decode takes the time that its bytes take. float32 has twice those of bfloat16, and no fast matrix units unless TF32 is allowed.",
    "--dtype bfloat16 (float16 on cards older than compute capability 8.0)",
)
def more_bytes_a_number(report: Reference, reference: Reference | None) -> Iterator[tuple[str, str]]:
    """Wider numbers than the reference on the same kind of device, or float32 on a GPU."""
    for m in facts.our_figures(report):
        mine, twin, theirs = m.details.get("dtype"), reference and reference.get(m.name), None
        if twin and reference.device == report.device:
            theirs = twin.details.get("dtype")
        if theirs is None and report.device == "gpu":
            theirs = "bfloat16"
        if BYTES.get(str(mine), 0) > BYTES.get(str(theirs), 4):
            whose = f"the reference in {theirs}" if twin else f"{theirs} is usual on a GPU"
            more = f"{BYTES[mine] // BYTES[theirs]} times the bytes for every weight and key"
            yield m.name, f"{m.name} ran in {mine}, {whose}: {more}"


@cause(
    "eager fallback",
    "The fast way was not available, so a general one ran: no CUDA graph, no Triton kernel, no compiled CPU kernel.",
    "`lab doctor` says what is missing (a GPU: Triton and no enforce_eager; a CPU: numba)",
)
def slow_path_taken(report: Reference, reference: Reference | None) -> Iterator[tuple[str, str]]:
    """The report says that a slow path ran, and the reference took another one."""
    for m in facts.our_figures(report):
        path, twin = m.details.get("path"), reference and reference.get(m.name)
        if path in SLOW_PATHS and not (twin and twin.details.get("path") in SLOW_PATHS):
            yield m.name, f"{m.name} ran on the path '{path}', not on the kernel"


@cause(
    "power or clock limit",
    "A card that may draw less, or is hot, or shares its machine, clocks lower. Then all ceilings sink together.",
    "look at nvidia-smi -q -d POWER,CLOCK,PERFORMANCE; on a CPU close other programs and plug in the laptop",
)
def limits_below_the_same_device(report: Reference, reference: Reference | None) -> Iterator[tuple[str, str]]:
    """The card throttled, or may draw less power than it was built for, or its ceilings are below its twin's."""
    gpu = report.environment.get("gpu") or {}
    power = (facts.number_or_none(gpu.get(name)) for name in ("power_limit_w", "default_power_limit_w"))
    clocks = (facts.number_or_none(gpu.get(f"{name}_sm_clock_mhz")) for name in ("p10", "highest", "max"))
    (allowed, usual), (low, high, most) = power, clocks
    up_to = f". Its clock went up to {high:,.0f} of {most:,.0f} MHz" if high and most else ""
    if allowed and usual and allowed < 0.95 * usual:
        yield "", f"this card may draw {allowed:.0f} W; it was built for {usual:.0f} W{up_to}"
    if low and high and low < 0.8 * high:
        why = ", ".join(map(str, gpu.get("throttled_by") or ())) or "it does not say why"
        busy = "while it was busy, a tenth of the time its clock was at"
        yield "", f"{busy} {low:,.0f} MHz or less ({why}){up_to}"
    if reference is None or not facts.same_device(report, reference) or report is reference:
        return
    # A processor has neighbours and other programs, so only a gross difference says something.
    enough, device = (0.85, "card") if report.device == "gpu" else (0.5, "processor")
    mine, theirs = report.limits, reference.limits
    pairs = [("reading memory", mine.read_gb_s, theirs.read_gb_s, "GB/s")]
    for dtype, rate in mine.matmul_tflops.items():
        pairs.append((f"{dtype} products", rate, theirs.matmul_tflops.get(dtype), "TFLOP/s"))
    lower = [p for p in pairs if p[1] and p[2] and p[1] < enough * p[2]]
    seen = "; ".join(f"{w}: {show_value(a)} {unit}, the reference {show_value(b)}" for w, a, b, unit in lower)
    if lower:
        yield "", f"the same {device}, and lower ceilings. {seen}{up_to}"


@cause(
    "small batch",
    "A step reads all weights, for one request or for fifty. With one, nothing shares the reading.",
    "let more requests share a step (max_num_seqs), send them at the same time, compare equal batches",
)
def batch_that_does_not_fill(report: Reference, reference: Reference | None) -> Iterator[tuple[str, str]]:
    """Throughput that a larger batch does not raise, or was measured for one request only."""

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
    "In each step Python decides, prepares, samples and hands out, and threads that share a product wait for each other. "
    "No limit of the table says how quickly a machine does that, and a step of a small model is mostly that.",
    "close other programs and measure again. If it stays, it is this processor's own; a larger model shows it less",
)
def fixed_time_in_each_step(report: Reference, reference: Reference | None) -> Iterator[tuple[str, str]]:
    """Half or more of a step's time beyond its floor is there when there is next to nothing to compute, too."""

    def step_ms(m: Measurement, value: float) -> float:
        """An ITL as it is, a throughput by its batch, which ends its name."""
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
