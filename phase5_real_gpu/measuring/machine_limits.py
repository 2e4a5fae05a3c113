"""What this machine can do at best: the ceilings that every figure of this phase is held against.

A data sheet says what the silicon could do. A program never quite gets that, and how much it gets differs
between two cards of one kind. So the ceilings are measured, on the machine at hand, with operations as simple
as can be: read a lot, copy a lot, multiply two large matrices, do nothing.

Ceilings are the best of several runs, since nothing may beat them. What is held against them are medians.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from labkit.machine import cpu_name
from phase2_attention_kvcache.model.checkpoint import parse_dtype
from phase2_attention_kvcache.model.roofline import Ceilings, Work
from phase5_real_gpu.measuring.kernel_timing import time_call, time_in_a_row
from phase5_real_gpu.measuring.measurements import Measurement

GB, GIB, TERA = 10**9, 2**30, 10**12


class Floor(NamedTuple):
    """The shortest time that something can take, and what sets it: "bandwidth" or "arithmetic"."""

    seconds: float
    limit: Literal["bandwidth", "arithmetic"]


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
        return [*found, Measurement("launch", self.launch_us, "us", "lower")]


@torch.inference_mode()
def measure_limits(device: str, dtypes: Sequence[str] = ("bfloat16",), quick: bool = False) -> MachineLimits:
    """Measure all ceilings of "cpu" or "cuda". Takes 1 to 3 seconds, with `quick` about one.

    Raises:
        ValueError: an unknown number format.
    """
    # Far more than any cache holds.
    size = 256 * 2**20
    if device == "cuda":
        # Many times the caches; from 2 GiB on torch would read it in pieces.
        size = min(GIB, torch.cuda.mem_get_info()[0] // 4)
    seconds = 0.05 if quick else 0.3
    name = torch.cuda.get_device_name() if device == "cuda" else cpu_name()
    tensor = torch.ones(size // 4, device=device)  # 4 bytes a number
    read_gb_s = _measure_read(tensor, device, seconds)
    copy_gb_s = _measure_copy(tensor, device, seconds)
    h2d, d2h = _measure_pcie(tensor, seconds) if device == "cuda" else (None, None)
    del tensor
    rates = {dtype: _measure_matmul(dtype, device, seconds, quick) for dtype in dtypes}
    number = torch.zeros(1, device=device)
    launch = time_in_a_row([lambda: number.add_(1)] * (100 if quick else 500), device)
    return MachineLimits(read_gb_s, copy_gb_s, rates, launch.low_us, name, h2d, d2h)


def best_seconds(fn, device: str, seconds: float) -> float:
    """The fastest of several calls. Only for what takes much longer than a launch, and fits no cache."""
    return time_call(fn, device, seconds, least=5, cold=False).low_us / 1e6


def _measure_read(tensor: torch.Tensor, device: str, seconds: float) -> float:
    """GB/s, by the best of three ways to read: a ceiling that is too low would flatter every kernel."""
    matrix = tensor[: tensor.numel() // 4096 * 4096].view(-1, 4096)
    vector = torch.ones(4096, device=device)
    ways = (tensor.sum, tensor.max, lambda: matrix @ vector)
    return tensor.nbytes / min(best_seconds(way, device, seconds / 3) for way in ways) / GB


def _measure_copy(tensor: torch.Tensor, device: str, seconds: float) -> float:
    """GB/s, read and written, from one half of the tensor to the other."""
    there, here = tensor[: tensor.numel() // 2], tensor[tensor.numel() // 2 :][: tensor.numel() // 2]
    return 2 * there.nbytes / best_seconds(lambda: there.copy_(here), device, seconds) / GB


def _measure_matmul(dtype: str, device: str, seconds: float, quick: bool) -> float:
    """TFLOP/s. Some processors multiply 16 bits slower than 32: there it is best to widen them on the way."""
    kinds = {parse_dtype(dtype), torch.float32} if device == "cpu" else {parse_dtype(dtype)}
    return max(_measure_product(kind, device, seconds, quick) for kind in kinds)


def _measure_product(kind: torch.dtype, device: str, seconds: float, quick: bool) -> float:
    side = 8192 if device == "cuda" else 1024 if quick else 2048
    if device == "cpu" and kind == torch.float16:
        side = 512  # many CPUs compute in float16 only by way of float32, a hundred times slower
    # Random numbers: zeros would cost a GPU less power and let it run faster than it really can.
    a, b = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
    return 2 * side**3 / best_seconds(lambda: a @ b, device, seconds) / TERA


def _measure_pcie(tensor: torch.Tensor, seconds: float) -> tuple[float, float]:
    """GB/s to the GPU and back. Pinned memory cannot be moved by the system, so the card may fetch it itself."""
    part = tensor[: min(tensor.numel(), 256 * 2**20 // 4)]
    host = torch.ones(part.numel(), pin_memory=True)
    there = best_seconds(lambda: part.copy_(host, non_blocking=True), "cuda", seconds)
    back = best_seconds(lambda: host.copy_(part, non_blocking=True), "cuda", seconds)
    return part.nbytes / there / GB, part.nbytes / back / GB
