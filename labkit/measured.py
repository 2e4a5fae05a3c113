"""Measurements of this machine that later runs use: a file in the user's cache folder.

An entry holds for one processor, version of torch, number of threads and setting of the limits in the environment.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.machine import cpu_name
from labkit.paths import write_whole

LIMITS = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "NUMBA_CPU_NAME")


def machine_key() -> str:
    """Return the properties of the machine that a measurement depends on, as text."""
    import torch

    limits = [f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ]
    return ", ".join(
        [cpu_name(), f"torch {torch.__version__}", f"{torch.get_num_threads()} threads", *limits]
    )


def measured_file() -> Path:
    folder = os.environ.get("INFERENCE_LAB_CACHE") or "~/.cache/inference-lab"
    return Path(folder).expanduser() / "measured.json"


def load_measured() -> dict[str, Any]:
    """Return the measurements of this machine. An unreadable file counts as empty: everything is measured again."""
    return _all().get(machine_key(), {})


def keep_measured(found: dict[str, Any]) -> None:
    """Add measurements. A folder without write permission is no error: the next run measures again."""
    with suppress(OSError):
        content = _all()
        content[machine_key()] = content.get(machine_key(), {}) | found
        write_whole(measured_file(), json.dumps(content, indent=1))


def _all() -> dict[str, dict[str, Any]]:
    with suppress(OSError, ValueError):
        content = json.loads(measured_file().read_text(encoding="utf-8"))
        if isinstance(content, dict) and all(isinstance(part, dict) for part in content.values()):
            return content
    return {}
