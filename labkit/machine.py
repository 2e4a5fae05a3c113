"""Properties of this machine, and timing on it."""

import os
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import psutil

from labkit.errors import LabError


def pick_device(name: str) -> str:
    """ "auto", "cpu" or "cuda" -> "cpu" or "cuda".

    Raises:
        LabError: the name is "cuda", and there is no GPU that this torch can use.
    """
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise LabError(f"unknown device {name!r}: use auto, cpu or cuda")
    if name == "auto":
        return "cuda" if has_gpu() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise LabError("no CUDA GPU on this machine: use --device cpu (`lab doctor` says more)")
    if name == "cuda" and (problem := gpu_too_old()):
        raise LabError(f"{problem}: use --device cpu, or a torch built for it")
    return name


def has_gpu() -> bool:
    """Tell whether there is a GPU that this torch can use."""
    import torch

    return torch.cuda.is_available() and gpu_too_old() is None


def gpu_too_old() -> str | None:
    """Return the reason if this torch has no code for the GPU, else None. It detects only cards older than all that torch
    was built for. Call it only on a machine with a GPU."""
    import torch

    built = [int(arch[3:].rstrip("af")) for arch in torch.cuda.get_arch_list() if arch.startswith("sm_")]
    major, minor = torch.cuda.get_device_capability()
    if built and 10 * major + minor < min(built):
        return f"{torch.cuda.get_device_name()} has compute capability {major}.{minor}, torch {torch.__version__} begins at {min(built) / 10:.1f}"
    return None


def synchronize(device: str) -> None:
    """Wait for the device. A GPU computes while Python continues, so timing needs this call."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def time_calls(fn: Callable[[], Any], device: str = "cpu", repeats: int = 5, warmup: int = 1) -> list[float]:
    """Measure the seconds of each of `repeats` calls, after `warmup` calls that do not count."""
    for _ in range(warmup):
        fn()
    seconds = []
    for _ in range(repeats):
        synchronize(device)
        began = time.perf_counter()
        fn()
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return seconds


def cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_bytes(device: str = "cpu") -> int:
    """Return the main memory of the machine, or the memory of its GPU, in bytes."""
    if device != "cpu":
        import torch

        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def environment() -> dict[str, Any]:
    """Return the properties that a reader needs to judge a figure measured here. Every report contains them."""
    import torch

    facts: dict[str, Any] = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "packages": {p: version_of(p) for p in ("torch", "transformers", "triton", "tiktoken", "numpy")},
        "gpu": None,
    }
    if has_gpu():
        properties = torch.cuda.get_device_properties(0)
        facts["gpu"] = {
            "name": properties.name,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
    return facts
