"""Runs a notebook in a fresh kernel, and reports the result of each cell."""

import atexit
import os
import re
import signal
import warnings
from pathlib import Path
from typing import Any

import nbformat
from jupyter_core.utils import ensure_event_loop
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
from rich.text import Text

from labkit.errors import LabError
from labkit.machine import has_gpu
from labkit.paths import ROOT, short

CELL_SECONDS = 60
NEEDS_GPU = "this cell needs a GPU"


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """Read a notebook.

    Raises:
        LabError: the file is no notebook.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a cell without an id is harmless
            nb = nbformat.read(path, as_version=4)
            nbformat.validate(nb)
    except OSError as error:
        raise LabError(f"{short(path)} cannot be read ({error.strerror})") from None
    except Exception as error:  # Jupyter cannot open the file either
        why = " ".join(str(error).split())[:120]
        raise LabError(f"{short(path)} is not a notebook ({type(error).__name__}: {why})") from None
    return nb


class Client(NotebookClient):
    """Runs a notebook in a folder, with the course on the kernel's path. Without a GPU it skips cells tagged `gpu`."""

    def __init__(self, nb: nbformat.NotebookNode, folder: Path, seconds: float, **settings: Any) -> None:
        settings |= dict(timeout=seconds, kernel_name="python3", record_timing=False)
        settings |= dict(extra_arguments=["--log-level=ERROR"])  # else the kernel warns about its sockets
        super().__init__(nb, resources={"metadata": {"path": str(folder)}}, **settings)
        self.begun = -1  # the number of the cell that was begun last

    async def async_execute_cell(self, cell: Any, cell_index: int, *args: Any, **kwargs: Any) -> Any:
        if needs_gpu(cell):
            return cell
        self.begun = cell_index
        return await super().async_execute_cell(cell, cell_index, *args, **kwargs)

    def run(self) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = os.environ | {"PYTHONPATH": path}
        # Set by a notebook that runs this: the pieces would expect a live kernel.
        env.pop("JPY_SESSION_NAME", None)
        try:
            self.execute(env=env)
        except RuntimeError as error:
            if self.begun >= 0:
                raise
            # nbclient leaves these behind. They would fail at exit, and take the next Ctrl-C.
            atexit.unregister(self._cleanup_kernel)
            for number in (signal.SIGINT, signal.SIGTERM):
                ensure_event_loop().remove_signal_handler(number)
            raise LabError(f"Jupyter's kernel did not start ({error}): try again") from None


def needs_gpu(cell: nbformat.NotebookNode) -> bool:
    return "gpu" in cell.metadata.get("tags", ()) and not has_gpu()


def run_notebook(path: Path, cell_seconds: float = CELL_SECONDS) -> list[dict[str, Any]]:
    """Run a notebook and return the result of each code cell. A slow cell is interrupted; after a failed cell the next one runs.

    Raises:
        LabError: the file is no notebook, or the kernel does not start.
    """
    nb = read_notebook(path)
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    client = Client(nb, path.parent, cell_seconds, allow_errors=True, interrupt_on_timeout=True)
    died = len(nb.cells)
    try:
        client.run()
    except DeadKernelError:
        died = client.begun
    code = [(place, cell) for place, cell in enumerate(nb.cells) if cell.cell_type == "code"]
    return [_told(number, cell, place - died) for number, (place, cell) in enumerate(code)]


def _told(number: int, cell: nbformat.NotebookNode, after_death: int) -> dict[str, Any]:
    """Return the result of a cell in plain values. after_death: its distance behind the cell that ended the kernel; below 0: before it."""
    error = next((o for o in cell.outputs if o.output_type == "error"), None)
    traceback = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback)) if error else ""
    # The line of the cell; called functions follow.
    arrow = re.search(r"^-+> (\d+) (.*)$", traceback, re.MULTILINE)
    shown = [output.data.get("text/plain", "") for output in cell.outputs if "data" in output]
    texts = [Text.from_ansi(text).plain for text in shown]
    failed = error is not None or after_death >= 0
    return {
        "number": number,
        "source": cell.source,
        "tags": list(cell.metadata.get("tags", ())),
        "outcome": "skipped" if needs_gpu(cell) else "failed" if failed else "passed",
        "error": error.ename if error else "KernelDied" if failed else "",
        "message": error.evalue if error else "",
        "where": f" in line {arrow[1]}" if arrow else "",
        "line": arrow[2].strip() if arrow else "",
        "printed": "".join(output.text for output in cell.outputs if output.output_type == "stream").strip(),
        "boxes": [text for text in texts if re.match(" ─ [✓✗○?] ", text)],
    }
