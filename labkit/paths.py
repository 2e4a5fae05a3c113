"""Where things are, and how they are written."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from labkit.errors import LabError

ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds the phases."""

EMBEDDED_MODELS = ROOT / "labkit" / "models"
"""The models that come with the course: `tales`, `tales-draft`."""


def outputs() -> Path:
    """Folder for figures and reports: `outputs/`, or INFERENCE_LAB_OUTPUTS."""
    return Path(os.environ.get("INFERENCE_LAB_OUTPUTS") or ROOT / "outputs")


def short(path: Path) -> str:
    """A path as it is shown: from the root of the repository, if it is in there."""
    whole = path.resolve()
    return str(whole.relative_to(ROOT)) if whole.is_relative_to(ROOT) else str(path)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file in one go: a reader finds the old one or the new one, never half of one.

    Raises:
        OSError: it cannot be written; what was there is unharmed.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    target = Path(os.path.realpath(path))  # where a link leads
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
            beside.unlink()  # there is none if all went well


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What keeps a file from being written is told as a user's mistake."""
    try:
        yield
    except OSError as error:
        raise LabError(f"cannot write {path} ({error.strerror}): choose a folder you may write to") from None


def check_writable(path: Path) -> None:
    """Whether a file could be written there: now, and not after minutes of work.

    Raises:
        LabError: it could not. It is a folder, or lies where this user may not write.
    """
    with writing(path):
        if path.is_dir():
            raise LabError(f"cannot write {path}: it is a folder, name a file in it")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.is_file():
            tempfile.TemporaryFile(dir=path.parent).close()
