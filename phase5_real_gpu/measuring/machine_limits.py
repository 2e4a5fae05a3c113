"""The ceilings of this machine: every figure of this phase is compared with them.

A data sheet says what the silicon could do. A program never reaches that, and how near it comes differs between two
cards of one kind. So the ceilings are measured, on the machine at hand, with operations as simple as possible: read a
lot, copy a lot, multiply two large matrices, start an operation on one number.

Ceilings are the best of several runs. The figures that are compared with them are medians.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from labkit.errors import LabError
from labkit.machine import cpu_name
from phase2_attention_kvcache.measuring.roofline import Ceilings, Work
from phase2_attention_kvcache.model.checkpoint import parse_dtype
from phase5_real_gpu.measuring.measurements import GB, TERA, Bench, Floor, Measurement
from phase5_real_gpu.measuring.timing import time_call, time_in_a_row

GIB = 2**30


@dataclass(frozen=True)
class MachineLimits:
    """Ceilings, measured.

    Attributes:
        read_gb_s: reading memory (a GPU's own), in 10^9 bytes a second.
        copy_gb_s: copying within it; what is read and what is written both count.
        matmul_tflops: a large matrix product, by number format, in 10^12 operations a second; an addition
            and a multiplication count as two. On a CPU no format has less than float32, which it can be widened to.
        launch_us: an operation on a single number, where many follow one another: the price of starting.
        device_name: the processor or the card.
        h2d_gb_s, d2h_gb_s: from pinned main memory to the GPU, and back. None without one.
    """

    read_gb_s: float
    copy_gb_s: float
    matmul_tflops: dict[str, float] = field(default_factory=dict)
    launch_us: float = 0.0
    device_name: str = ""
    h2d_gb_s: float | None = None
    d2h_gb_s: float | None = None

    def ceilings(self, dtype: str) -> Ceilings:
        """For the roofline of Phase 2. Raises KeyError if the products of this format were not measured."""
        return Ceilings(self.read_gb_s * GB, self.matmul_tflops[dtype] * TERA)

    def floor(self, work: Work, dtype: str) -> Floor:
        """Bytes over the measured bandwidth, or operations over the measured rate, whichever takes longer."""
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


@torch.inference_mode()
def measure_limits(device: str, dtypes: Sequence[str] = ("bfloat16",), quick: bool = False) -> MachineLimits:
    """Measure all ceilings of "cpu" or "cuda". Takes 1 to 3 seconds, with `quick` about one.

    Raises:
        ValueError: an unknown number format.
    """
    # Far more than any cache holds; from 2 GiB on torch would read it in pieces.
    size = GIB // 4 if device == "cpu" else min(GIB, torch.cuda.mem_get_info()[0] // 4 // 2**15 * 2**15)
    seconds = 0.05 if quick else 0.3

    def best(fn: Callable[[], object]) -> float:
        """Seconds of the fastest of several calls. Each takes much longer than a launch, and fits no cache."""
        return time_call(fn, device, seconds, cold=False).low_us / 1e6

    def memory() -> list[float]:
        """GB/s of reading and of copying; on a GPU also from main memory and back."""
        tensor, vector = torch.ones(size // 4, device=device), torch.ones(4096, device=device)
        matrix, (here, there) = tensor.view(-1, 4096), tensor.view(2, -1)
        # The best of three ways to read: a ceiling that is too low would flatter every kernel.
        read = min(best(way) for way in (tensor.sum, tensor.max, lambda: matrix @ vector))
        rates = [tensor.nbytes / read, 2 * here.nbytes / best(lambda: there.copy_(here))]
        if device == "cuda":
            part = tensor[: GIB // 16]
            host = torch.ones(
                len(part), pin_memory=True
            )  # the system cannot move it, so the card may fetch it itself
            ways = (lambda: part.copy_(host, non_blocking=True), lambda: host.copy_(part, non_blocking=True))
            rates += [part.nbytes / best(way) for way in ways]
        return [rate / GB for rate in rates]

    def tflops(kind: torch.dtype) -> float:
        side = 8192 if device == "cuda" else 1024 if quick else 2048
        if device == "cpu" and kind == torch.float16:
            side = 512  # many CPUs compute in float16 only by way of float32, a hundred times slower
        # Random numbers: zeros would cost a GPU less power and let it run faster than it really can.
        a, b = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
        return 2 * side**3 / best(lambda: a @ b) / TERA

    # Some processors multiply 16 bits slower than 32: there it is best to widen them first.
    wider = {torch.float32} if device == "cpu" else set()
    rates = {dtype: max(map(tflops, {parse_dtype(dtype)} | wider)) for dtype in dtypes}
    number = torch.zeros(1, device=device)
    launch = time_in_a_row([lambda: number.add_(1)] * (100 if quick else 500), device)
    name = torch.cuda.get_device_name() if device == "cuda" else cpu_name()
    read, copy, *bus = memory()
    return MachineLimits(read, copy, rates, launch.low_us, name, *bus)


def open_bench(device: str, dtype: str, quick: bool, seed: int, resume: str | None = None) -> Bench:
    """A bench with the ceilings of this machine.

    Args:
        resume: the report of an earlier run: its ceilings and figures are taken over. A file that does not exist yet
            is no mistake.

    Raises:
        LabError: the report cannot be read, or was measured on another device, in another dtype or more quickly.
    """
    if resume is None or not Path(resume).exists():
        return Bench(measure_limits(device, (dtype,), quick), device, dtype, seed)
    try:
        report = json.loads(Path(resume).read_text(encoding="utf-8"))
        limits = MachineLimits(**report["results"]["limits"])
        found = {m["name"]: m for m in report["results"]["measurements"]}
        was_quick = report["arguments"]["quick"]
        kept = [
            Measurement(**{k: v for k, v in m.items() if k != "share_of_limit"})
            for name, m in found.items()
            if name not in {ceiling.name for ceiling in limits.measurements()}
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LabError(
            f"{resume} holds no report to go on with ({error!r:.80}): give another --json"
        ) from None
    name = torch.cuda.get_device_name() if device == "cuda" else cpu_name()
    if limits.device_name != name or dtype not in limits.matmul_tflops or was_quick != quick:
        raise LabError(f"{resume} was measured in another way ({limits.device_name}): give another --json")
    return Bench(limits, device, dtype, seed, found={m.name: m for m in kept})
