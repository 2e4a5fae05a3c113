"""What the card itself says while it works: power, clocks, temperature, driver. Asked of NVIDIA's NVML library.

A card's clock is low while nothing runs, so it has to be looked at under load: every few seconds, and the
highest value counts. Without NVML (no card, no package nvidia-ml-py) there is nothing to see, and nothing goes wrong.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any


def ask() -> dict[str, Any]:
    """Of the first card, or the first that CUDA_VISIBLE_DEVICES names; what the card does not tell is left out.
    {} where there is no NVML."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        card = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
        by_number = card.isdigit()
        handle = (
            nvml.nvmlDeviceGetHandleByIndex(int(card)) if by_number else nvml.nvmlDeviceGetHandleByUUID(card)
        )
    except Exception:  # no package, no driver, no such card: each has an error of its own
        return {}
    questions = {
        "driver": nvml.nvmlSystemGetDriverVersion,
        "power_limit_w": lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
        "default_power_limit_w": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000,
        "max_sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "max_memory_clock_mhz": lambda: float(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "highest_power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "highest_sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "highest_memory_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "highest_temperature_c": lambda: float(
            nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        ),
    }
    found: dict[str, Any] = {}
    for name, question in questions.items():
        with suppress(nvml.NVMLError):
            found[name] = question()
    return found


class GpuWatch:
    """Asks every few seconds in a thread of its own, and keeps the highest of what changes under load.

    >>> with GpuWatch() as watch:
    ...     work()
    >>> watch.seen["highest_sm_clock_mhz"]
    """

    def __init__(self, every: float = 5.0) -> None:
        self.seen: dict[str, Any] = {}
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuWatch:
        self.note(ask())
        if self.seen:  # otherwise there is nothing to watch
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=15)

    def note(self, facts: dict[str, Any]) -> None:
        for name, value in facts.items():
            if name.startswith("highest_"):
                value = max(value, self.seen.get(name, value))
            self.seen[name] = value

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            self.note(ask())
