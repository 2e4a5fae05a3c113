"""The course's own `labkit` for a script of this folder: see phase1_tokens_embeddings/labkit.py."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
del sys.modules[__name__]
import labkit  # noqa: E402, F401
