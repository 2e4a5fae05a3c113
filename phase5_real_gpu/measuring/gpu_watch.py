"""Samples power, clocks, temperature and throttling of a GPU under load, with NVIDIA's NVML library.

An idle GPU lowers its clock, so the report keeps the highest clock, power and temperature; the lowest, the 10th percentile and
the median of the clock while the GPU was busy; and every reason for a lower clock that occurred. Without NVML (no GPU, or no
package nvidia-ml-py) the report is empty.
"""

import bisect
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

BUSY = 50  # percent of the sampling period in which a kernel ran
# Limits that lower the clock, by the name of NVML's bit; idling and clocks set by the user are left out.
REASONS = ("SwPowerCap", "HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")


def ask() -> dict[str, Any]:
    """Query the first GPU, or the first in CUDA_VISIBLE_DEVICES. Values that it does not report are absent; {} without NVML.

    NVML counts GPUs by PCI bus. With different GPUs in one machine, set CUDA_DEVICE_ORDER=PCI_BUS_ID: CUDA's order is then the same."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        card = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
        by_number = card.isdigit()
        h = nvml.nvmlDeviceGetHandleByIndex(int(card)) if by_number else nvml.nvmlDeviceGetHandleByUUID(card)
    except Exception:  # no package, no driver, no such GPU: each raises its own error
        return {}
    sm, memory = nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM

    def reasons() -> list[str]:
        bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(h)
        return [name for name in REASONS if bits & getattr(nvml, f"nvmlClocksThrottleReason{name}", 0)]

    questions = {
        "driver": nvml.nvmlSystemGetDriverVersion,
        "power_limit_w": lambda: nvml.nvmlDeviceGetPowerManagementLimit(h) / 1000,
        "default_power_limit_w": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(h) / 1000,
        "max_sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetMaxClockInfo(h, sm)),
        "max_memory_clock_mhz": lambda: float(nvml.nvmlDeviceGetMaxClockInfo(h, memory)),
        "highest_power_w": lambda: nvml.nvmlDeviceGetPowerUsage(h) / 1000,
        "highest_sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(h, sm)),
        "highest_memory_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(h, memory)),
        "highest_temperature_c": lambda: float(nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU)),
        "busy_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(h).gpu,
        "throttled_by": reasons,
    }
    found: dict[str, Any] = {}
    for name, question in questions.items():
        with suppress(nvml.NVMLError, AttributeError):
            found[name] = question()
    return found


@contextmanager
def watch_card(every: float = 1.0) -> Iterator[dict[str, Any]]:
    """Sample in a thread every `every` seconds. Yields the report, which is updated in place.

    >>> with watch_card() as seen:
    ...     work()
    >>> seen["highest_sm_clock_mhz"], seen["p10_sm_clock_mhz"], seen["throttled_by"]
    """
    seen, stop, clocks = ask(), threading.Event(), []

    def watch() -> None:
        while not stop.wait(every):
            now = ask()
            if now.pop("busy_percent", 0) >= BUSY and "highest_sm_clock_mhz" in now:
                bisect.insort(clocks, now["highest_sm_clock_mhz"])
                for name, place in (("lowest", 0), ("p10", len(clocks) // 10), ("median", len(clocks) // 2)):
                    seen[f"{name}_sm_clock_mhz"] = clocks[place]
            reasons = {*seen.get("throttled_by", ()), *now.pop("throttled_by", ())}
            seen.update(now | {k: max(v, seen.get(k, v)) for k, v in now.items() if k.startswith("highest_")})
            seen["throttled_by"] = sorted(reasons)

    seen.pop("busy_percent", None)
    thread = threading.Thread(target=watch, daemon=True)
    if seen:  # otherwise there is no GPU to watch
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        if seen:
            thread.join(timeout=15)
