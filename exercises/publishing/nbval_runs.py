"""Run notebooks through nbval and tell what came out, cell by cell."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.paths import ROOT

CELL_SECONDS = 60


def run_nbval(
    notebooks: Sequence[Path], cell_seconds: int = CELL_SECONDS
) -> tuple[list[dict[str, Any]], str]:
    """(what came out of each cell, what pytest printed). The cells are as in nbval_report.describe.

    The kernels find the course's packages wherever the notebook is.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "cells.json"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "--color=no", "--timeout=0"),
                *("-p", "exercises.publishing.nbval_report", "-p", "no:cacheprovider", "-p", "no:randomly"),
                *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-o", "addopts="),
                *("--nbval-lax", "--nbval-current-env", f"--nbval-cell-timeout={cell_seconds}"),
                *map(str, notebooks),
            ],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path, "INFERENCE_LAB_NBVAL_REPORT": str(report)},
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        cells = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else []
    return cells, done.stdout + done.stderr
