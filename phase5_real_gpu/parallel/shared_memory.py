"""Memory that several processes share: a file that lies in the computer's memory, mapped by each of them.

What one process writes there, all others see, without any copy. It stays as long as a process has it mapped, even when the
one that made it is dead and its name is gone.
"""

import errno
import os
import shutil
import tempfile
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from labkit.errors import LabError

PIECE = bytes(1 << 20)


def shared_folder() -> Path:
    """Where files lie in memory: /dev/shm on Linux. Elsewhere a folder of the disk, which is cached in memory."""
    linux = Path("/dev/shm")
    return linux if linux.is_dir() else Path(tempfile.gettempdir())


def new_name() -> Path:
    """A name for shared memory that nobody else has."""
    return shared_folder() / f"inference-lab-{uuid4().hex}"


def create_shared_memory(num_bytes: int, path: Path | None = None) -> tuple[Path, Tensor]:
    """New memory, all zeros. Who makes it removes its name in the end (`path.unlink()`).

    Args:
        path: its name; None: a new one.

    Returns:
        its name, and its bytes: uint8 [num_bytes].

    Raises:
        LabError: there is not enough of it.
    """
    path = path or new_name()
    try:
        if shutil.disk_usage(path.parent).free < num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with path.open("xb") as file:
            # Written, not only claimed: a page that cannot be had later on would end the process without a word.
            for start in range(0, num_bytes, len(PIECE)):
                file.write(PIECE[: num_bytes - start])
    except OSError as error:
        path.unlink(missing_ok=True)
        raise LabError(
            f"no shared memory of {num_bytes / 1e6:,.1f} MB in {path.parent} ({error.strerror}): lower num_blocks, or make it "
            "larger (Linux: mount -o remount,size=..., Docker: --shm-size)"
        ) from None
    return path, open_shared_memory(path)


def open_shared_memory(path: str | Path) -> Tensor:
    """Its bytes, uint8, as another process made it. Raises OSError if it is gone."""
    return torch.from_numpy(np.memmap(path, dtype=np.uint8, mode="r+"))
