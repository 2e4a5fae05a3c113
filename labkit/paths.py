"""Where things are."""

import contextlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds the phases."""

EMBEDDED_MODELS = ROOT / "labkit" / "models"
"""The models that come with the course: `tales`, `tales-draft`."""


def outputs() -> Path:
    """Folder for figures and reports: `outputs/`, or INFERENCE_LAB_OUTPUTS."""
    return Path(os.environ.get("INFERENCE_LAB_OUTPUTS", ROOT / "outputs"))


def short(path: Path) -> str:
    """A path as it is shown: from the root of the repository, if it is in there."""
    whole = path.resolve()
    return str(whole.relative_to(ROOT)) if whole.is_relative_to(ROOT) else str(path)


def write_whole(path: Path, text: str) -> None:
    """Write a file in one go: a reader finds the old one or the new one, never half of one.

    Raises:
        OSError: it cannot be written; what was there is unharmed.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8", newline="\n")
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None
