"""Measures the limits (ceilings) of this machine, with which every figure of this phase is compared.

Programs do not reach the limits of the data sheet, and two cards of the same model differ. So the limits are measured on this
machine with simple operations: read and copy a large tensor, multiply two large matrices, start an operation on one number.

A limit is the best of several runs. The figures that are compared with it are medians.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from labkit.errors import LabError
from labkit.machine import cpu_name
from phase2_attention_kvcache.model.checkpoint import parse_dtype
from phase5_real_gpu.measuring.measurements import GB, TERA, Bench, Limits
from phase5_real_gpu.measuring.reference_files import read_reference
from phase5_real_gpu.measuring.timing import time_call

GIB = 2**30


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else cpu_name()


@torch.inference_mode()
def measure_limits(device: str, dtypes: Sequence[str] = ("bfloat16",), quick: bool = False) -> Limits:
    """Measure all ceilings of "cpu" or "cuda". Takes 1 to 3 seconds, with `quick` about one.

    Raises:
        ValueError: an unknown number format.
    """
    # Larger than every cache; torch would split tensors of 2 GiB and more.
    size = GIB // 4 if device == "cpu" else min(GIB, torch.cuda.mem_get_info()[0] // 4 // 2**15 * 2**15)
    seconds = 0.05 if quick else 0.3

    def best(fn: Callable[[], object]) -> float:
        """Seconds of the fastest of several calls. A call takes much longer than a launch, and its data exceed every cache."""
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
            host = torch.ones(len(part), pin_memory=True)  # the GPU can access pinned memory directly
            ways = (lambda: part.copy_(host, non_blocking=True), lambda: host.copy_(part, non_blocking=True))
            rates += [part.nbytes / best(way) for way in ways]
        return [rate / GB for rate in rates]

    def tflops(kind: torch.dtype) -> float:
        side = 8192 if device == "cuda" else 1024 if quick else 2048
        if device == "cpu" and kind == torch.float16:
            side = 512  # many CPUs compute in float16 only by way of float32, a hundred times slower
        # Random numbers: with zeros a GPU draws less power and clocks higher than with real data.
        a, b = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
        return 2 * side**3 / best(lambda: a @ b) / TERA

    # Some CPUs multiply slower in 16 bits than in float32. There the limit is that of float32.
    wider = {torch.float32} if device == "cpu" else set()
    rates = {dtype: max(map(tflops, {parse_dtype(dtype)} | wider)) for dtype in dtypes}
    number, starts = torch.zeros(1, device=device), 100 if quick else 500
    launch = time_call(lambda: [number.add_(1) for _ in range(starts)], device, seconds, cold=False)
    read, copy, *bus = memory()
    return Limits(read, copy, rates, launch.divided_by(starts).low_us, "measured", device_name(device), *bus)


def open_bench(device: str, dtype: str, quick: bool, seed: int, resume: str | None = None) -> Bench:
    """A bench with the ceilings of this machine.

    Args:
        resume: the report of an earlier run, whose limits and figures are reused. The file need not exist.

    Raises:
        LabError: the report cannot be read, or was measured on another device, in another dtype or more quickly.
    """
    if resume is None or not Path(resume).exists():
        return Bench(measure_limits(device, (dtype,), quick), device, dtype, seed)
    earlier = read_reference(resume)
    limits = earlier.limits
    is_alike = (limits.device_name, earlier.quick) == (device_name(device), quick)
    if not is_alike or dtype not in limits.matmul_tflops:
        raise LabError(
            f"{resume} was measured on another device ({limits.device_name}), in another dtype or with another --quick: give another --json"
        )
    ceilings = {m.name for m in limits.measurements()}
    found = {m.name: m for m in earlier.measurements if m.name not in ceilings}
    return Bench(limits, device, dtype, seed, found=found)
