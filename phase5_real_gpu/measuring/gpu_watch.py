"""What the card itself says while it works: power, clocks, temperature, driver. Asked of NVIDIA's NVML library.

A card's clock is low while nothing runs, so it has to be looked at under load: every few seconds, and the
highest value counts. Without NVML (no card, no package nvidia-ml-py) there is nothing to see, and nothing goes wrong.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def watch_card(every: float = 5.0) -> Iterator[dict[str, Any]]:
    """Asks every few seconds in a thread of its own. Yields what was seen; of what changes under load, the highest.

    >>> with watch_card() as seen:
    ...     work()
    >>> seen["highest_sm_clock_mhz"]
    """
    seen, stop = ask(), threading.Event()

    def watch() -> None:
        while not stop.wait(every):
            for name, value in ask().items():
                seen[name] = max(value, seen.get(name, value)) if name.startswith("highest_") else value

    thread = threading.Thread(target=watch, daemon=True)
    if seen:  # otherwise there is nothing to watch
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        if seen:
            thread.join(timeout=15)
