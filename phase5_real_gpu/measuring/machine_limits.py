"""The ceilings of this machine: every figure of this phase is compared with them.

A data sheet says what the silicon could do. A program never reaches that, and how near it comes differs between two
cards of one kind. So the ceilings are measured, on the machine at hand, with operations as simple as possible: read a
lot, copy a lot, multiply two large matrices, start an operation on one number.

Ceilings are the best of several runs. The figures that are compared with them are medians.
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
            host = torch.ones(len(part), pin_memory=True)  # the card may fetch pinned memory itself
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
    number, starts = torch.zeros(1, device=device), 100 if quick else 500
    launch = time_call(lambda: [number.add_(1) for _ in range(starts)], device, seconds, cold=False)
    read, copy, *bus = memory()
    return Limits(read, copy, rates, launch.divided_by(starts).low_us, "measured", device_name(device), *bus)


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
    earlier = read_reference(resume)
    limits = earlier.limits
    is_alike = (limits.device_name, earlier.quick) == (device_name(device), quick)
    if not is_alike or dtype not in limits.matmul_tflops:
        raise LabError(f"{resume} was measured in another way ({limits.device_name}): give another --json")
    ceilings = {m.name for m in limits.measurements()}
    found = {m.name: m for m in earlier.measurements if m.name not in ceilings}
    return Bench(limits, device, dtype, seed, found=found)
