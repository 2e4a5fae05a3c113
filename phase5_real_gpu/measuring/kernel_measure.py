"""One kernel on one case: check its answer, time it, and lay it beside the limit of the machine."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from phase5_real_gpu.measuring.kernel_cases import (
    DTYPES,
    AttentionCase,
    AttentionInputs,
    WriteCase,
    WrongAnswer,
    check_answer,
    make_inputs,
    reference,
)
from phase5_real_gpu.measuring.kernel_peers import NotHere, Prepared, Runner, copies_in_memory
from phase5_real_gpu.measuring.kernel_timing import Timing, as_cuda_graph, time_call, time_in_a_row
from phase5_real_gpu.measuring.machine_limits import GB, Floor, MachineLimits
from phase5_real_gpu.measuring.measurements import Measurement

How = Literal["cold", "row", "graph"]
"""cold: the kernel alone, empty caches. row: one after the other, Python's share included. graph: the same
calls, recorded in a CUDA graph."""


@dataclass(frozen=True)
class Result:
    """A measurement, and what a reader wants to see beside it."""

    measurement: Measurement
    case: str
    runner: str
    gb_s: float
    tflop_s: float
    intensity: float


def floor_of(case: AttentionCase | WriteCase, limits: MachineLimits) -> Floor:
    """Attention is held against reading, storing keys and values against copying."""
    if isinstance(case, WriteCase):
        return Floor(case.work.bytes / (limits.copy_gb_s * GB), "bandwidth")
    return limits.floor(case.work, case.dtype)


def as_result(
    case: AttentionCase | WriteCase, name: str, runner: str, timing: Timing, limits: MachineLimits, **details
) -> Result:
    floor = floor_of(case, limits)
    title = f"{case.title}, graph" if "layers_in_graph" in details else case.title
    work, seconds = case.work, timing.median_us / 1e6
    gb_s, tflop_s = work.bytes / seconds / GB, work.operations / seconds / 1e12
    details = dict(
        dtype=case.dtype, bytes=int(work.bytes), operations=int(work.operations), gb_s=gb_s, tflop_s=tflop_s,
        lowest=timing.low_us, highest=timing.high_us, runs=timing.runs, launch_us=timing.launch_us, **details,
    )  # fmt: skip
    measurement = Measurement(
        name, timing.median_us, "us", "lower", 1e6 * floor.seconds, floor.limit, details
    )
    return Result(measurement, title, runner, gb_s, tflop_s, work.intensity)


@torch.inference_mode()
def measure_runner(
    runner: Runner,
    layers: Sequence[AttentionInputs],
    expected: Tensor,
    limits: MachineLimits,
    how: How = "cold",
    seconds: float = 0.1,
    suffix: str = "",
    least: int = 5,
) -> Result:
    """Check, then time.

    Args:
        layers: what one call after the other works on; the same numbers in different memory.
        expected: the right answer, of every layer.

    Raises:
        NotHere: this machine or case cannot have the runner. WrongAnswer: its answer is wrong.
    """
    case, device = layers[0].case, layers[0].device
    prepared: Prepared = runner.prepare(layers)
    calls = prepared.calls
    details = {}
    error = max(check_answer(call(), expected, case.dtype, runner.slack) for call in calls)
    if how == "graph":
        outs: list[Tensor] = []
        replay = as_cuda_graph([lambda call=call: outs.append(call()) for call in calls])
        for out in outs[-len(calls) :]:
            out.zero_()  # so that what is there afterwards is the graph's own work
        replay()
        torch.cuda.synchronize()
        error = max(check_answer(out, expected, case.dtype, runner.slack) for out in outs[-len(calls) :])
        timing = time_call(replay, device, seconds).divided_by(len(calls))
        details["layers_in_graph"] = len(calls)
    elif how == "row":
        timing = time_in_a_row(calls, device)
    else:
        timing = time_call(calls[0], device, seconds, least)
    if prepared.plan:
        plan = time_in_a_row([prepared.plan] * 10, device)
        details["plan_us"] = plan.median_us
    return as_result(
        case, f"{runner.prefix}{case.name}{suffix}", runner.title, timing, limits, error=error, **details
    )


@torch.inference_mode()
def measure_write(
    write: Callable[..., None],
    prefix: str,
    title: str,
    case: WriteCase,
    limits: MachineLimits,
    device: str,
    seconds: float = 0.1,
) -> Result:
    """Store a prompt's keys and values in scattered blocks; every other slot must stay as it was.

    Args:
        write: (k, v, k_cache, v_cache, slot_mapping) -> None.

    Raises:
        WrongAnswer: a slot holds what it should not.
    """
    h, dtype = case.heads, DTYPES[case.dtype]
    torch.manual_seed(0)
    blocks = 1 + torch.randperm(2 * -(-case.tokens // h.block_size))  # half of them stay free
    places = torch.arange(case.tokens)
    slots = (blocks[places // h.block_size] * h.block_size + places % h.block_size).to(device)
    k, v = torch.randn(2, case.tokens, h.num_kv_heads, h.head_dim, dtype=dtype, device=device)
    caches = torch.randn(
        2, 1 + len(blocks), h.block_size, h.num_kv_heads, h.head_dim, dtype=dtype, device=device
    )
    expected = caches.clone()
    for cache, new in zip(expected, (k, v)):
        cache.flatten(0, 1)[slots] = new
    write(k, v, caches[0], caches[1], slots)
    if not torch.equal(caches, expected):
        raise WrongAnswer("wrong: the cache does not hold what was to be stored, so it gets no figure")
    del expected
    # One layer after the other: what a single one writes could stay in the GPU's cache and never reach memory.
    layers = [(k, v, *caches)]
    if device == "cuda":
        layers += [(k.clone(), v.clone(), *caches.clone()) for _ in range(7)]
    timing = time_call(lambda: [write(*layer, slots) for layer in layers], device, seconds)
    timing = timing.divided_by(len(layers))
    return as_result(case, f"{prefix}{case.name}", title, timing, limits)


@dataclass
class Bench:
    """Runs one thing after the other. What fails says so in a line, and the others go on.

    Attributes:
        seconds, least: for each timing, and at least so many runs.
        tell: called with a line about what has no figure.
        until: nothing that is marked `slow` begins after this time (of time.monotonic).
    """

    limits: MachineLimits
    device: str
    seconds: float
    least: int = 5
    seed: int = 0
    tell: Callable[[str], None] = lambda _: None
    until: float = float("inf")
    results: dict[str, Result] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def attempt(self, what: str, fn: Callable[[], Result], slow: bool = False) -> Result | None:
        if slow and time.monotonic() > self.until:
            self.leave_out(what, "left out, time is up")
            return None
        try:
            result = fn()
        except (NotHere, WrongAnswer) as error:
            self.leave_out(what, str(error))
        except Exception as error:  # a compiler's, a driver's, a peer's: whatever it is, the others go on
            lines = [line for line in str(error).splitlines() if line.strip()] or ["no message"]
            self.leave_out(what, f"failed: {type(error).__name__}: {lines[0][:200]}")
        else:
            self.results[result.measurement.name] = result
            return result
        if self.device == "cuda":
            free_memory()
        return None

    def leave_out(self, what: str, why: str) -> None:
        """Say, and keep, that this has no figure."""
        if why not in self.left_out.values():  # the same reason once: FlashInfer is missing for all cases
            self.tell(f"- {what}: {why}")
        self.left_out[what] = why

    def run_case(
        self,
        case: AttentionCase,
        runners: Sequence[Runner],
        how: How = "cold",
        layers: int = 1,
        suffix: str = "",
        slow: bool = False,
    ) -> None:
        """All runners on one case: the same data, the same right answer."""
        made: list[tuple[list[AttentionInputs], Tensor]] = []

        def data() -> tuple[list[AttentionInputs], Tensor]:
            if not made:
                inputs = make_inputs(case, self.device, self.seed)
                made.append((copies_in_memory(inputs, layers), reference(inputs)))
            return made[0]

        for runner in runners:
            self.attempt(
                f"{runner.title}, {case.title}{suffix and ' ' + suffix}",
                lambda runner=runner: measure_runner(
                    runner, *data(), self.limits, how, self.seconds, suffix, self.least
                ),
                slow,
            )

    def measurements(self) -> list[Measurement]:
        return [r.measurement for r in self.results.values()]


def free_memory() -> None:
    """After an out-of-memory error, what the failed attempt held must not make the next one fail as well."""
    try:
        torch.cuda.empty_cache()
    except RuntimeError:
        return  # the card itself is in a failed state: every later attempt says so
