"""What was measured on this machine and holds for later runs: a file in the user's cache folder.

It belongs to a processor, a torch, a number of threads and the limits that the environment sets them.
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
    """The machine as far as a measurement depends on it."""
    import torch

    limits = [f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ]
    return ", ".join(
        [cpu_name(), f"torch {torch.__version__}", f"{torch.get_num_threads()} threads", *limits]
    )


def measured_file() -> Path:
    folder = os.environ.get("INFERENCE_LAB_CACHE") or "~/.cache/inference-lab"
    return Path(folder).expanduser() / "measured.json"


def load_measured() -> dict[str, Any]:
    """What was measured here. A file that cannot be read counts as empty: everything is measured anew."""
    return _all().get(machine_key(), {})


def keep_measured(found: dict[str, Any]) -> None:
    """Add to it. A folder that may not be written is no error: it is measured again next time."""
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
