"""What the card itself says while it works: power, clocks, temperature, driver. Asked of nvidia-smi.

A card's clock is low while nobody needs it, so it has to be looked at under load: every few seconds, and the
highest value counts. Without nvidia-smi there is nothing to see, and nothing goes wrong.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from typing import Any

# Our name, nvidia-smi's, and whether it changes with the load (then the highest is kept).
FIELDS: list[tuple[str, str, bool]] = [
    ("power_limit_w", "power.limit", False),
    ("default_power_limit_w", "power.default_limit", False),
    ("max_sm_clock_mhz", "clocks.max.sm", False),
    ("max_memory_clock_mhz", "clocks.max.memory", False),
    ("highest_power_w", "power.draw", True),
    ("highest_sm_clock_mhz", "clocks.sm", True),
    ("highest_memory_clock_mhz", "clocks.mem", True),
    ("highest_temperature_c", "temperature.gpu", True),
]
QUERY = ["--query-gpu=driver_version," + ",".join(f for _, f, _ in FIELDS), "--format=csv,noheader,nounits"]


def parse_line(line: str) -> dict[str, Any]:
    """A line of nvidia-smi's answer. What a card does not tell ("[N/A]") is left out.

    >>> parse_line("580.82.07, 700.00, 700.00, 1980, 3201, 122.10, 345, 3201, 31")["power_limit_w"]
    700.0
    """
    words = [word.strip() for word in line.split(",")]
    found: dict[str, Any] = {}
    if words and words[0][:1].isdigit():
        found["driver"] = words[0]
    for (name, _, _), word in zip(FIELDS, words[1:]):
        try:
            found[name] = float(word)
        except ValueError:
            continue
    return found


def ask(seconds: float = 10.0) -> dict[str, Any]:
    """Of the first card, or the first that CUDA_VISIBLE_DEVICES names; {} where there is no nvidia-smi, or it has nothing to say."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    card = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    try:
        answer = subprocess.run(
            [program, *QUERY, f"--id={card}"],
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = answer.stdout.splitlines() if answer.returncode == 0 else []
    return parse_line(lines[0]) if lines else {}


class GpuWatch:
    """Asks every few seconds in a thread of its own.

    >>> with GpuWatch() as watch:
    ...     work()
    >>> watch.summary()["highest_sm_clock_mhz"]
    """

    def __init__(self, every: float = 5.0) -> None:
        self._every = every
        self._seen: dict[str, Any] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuWatch:
        self._note(ask())
        if self._seen:  # otherwise there is nothing to watch
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=15)

    def summary(self) -> dict[str, Any]:
        return dict(self._seen)

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            self._note(ask())

    def _note(self, facts: dict[str, Any]) -> None:
        changing = {name for name, _, changes in FIELDS if changes}
        for name, value in facts.items():
            if name in changing:
                value = max(value, self._seen.get(name, value))
            self._seen[name] = value
