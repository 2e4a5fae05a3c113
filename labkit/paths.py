"""Where things are."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds the phases."""

EMBEDDED_MODELS = ROOT / "labkit" / "models"
"""The models that come with the course: `tales`, `tales-draft`."""


def outputs() -> Path:
    """Folder for figures and reports: `outputs/`, or INFERENCE_LAB_OUTPUTS."""
    return Path(os.environ.get("INFERENCE_LAB_OUTPUTS", ROOT / "outputs"))
