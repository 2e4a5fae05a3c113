"""The folders of the course, and functions that write files."""

import contextlib
import os
import tempfile
from pathlib import Path

from labkit.errors import LabError

ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds the phases."""

EMBEDDED_MODELS = ROOT / "labkit" / "models"
"""The models that come with the course: `tales`, `tales-draft`."""


def outputs() -> Path:
    """Return the folder for figures and reports: `outputs/`, or INFERENCE_LAB_OUTPUTS."""
    return Path(os.environ.get("INFERENCE_LAB_OUTPUTS") or ROOT / "outputs")


def short(path: Path) -> str:
    """Return a path for messages: relative to the root of the repository, if it is inside."""
    whole = path.resolve()
    return str(whole.relative_to(ROOT)) if whole.is_relative_to(ROOT) else str(path)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically: a reader finds the old content or the new content, never a part.

    Raises:
        OSError: the file cannot be written; the old content is unchanged.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    target = Path(os.path.realpath(path))  # the target of a link
    beside = target.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        if path.exists() and not path.is_file():  # /dev/stdout: nothing to replace
            path.write_bytes(data)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(data)
        os.replace(beside, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()  # it does not exist after a success


def check_writable(path: Path) -> None:
    """Check before minutes of work that a file can be written.

    Raises:
        LabError: the path is a folder, or the user has no permission to write there.
    """
    try:
        if path.is_dir():
            raise LabError(f"cannot write {path}: it is a folder, name a file in it")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.is_file():
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise LabError(f"cannot write {path} ({error.strerror}): choose a folder you may write to") from None
