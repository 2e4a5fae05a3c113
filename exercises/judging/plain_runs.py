"""Run the cells of notebooks in this Python process, without Jupyter: quick, and enough to see which cells fail.

    python -m exercises.judging.plain_runs NOTEBOOK ...     prints a list of cells as JSON

It is not nbval: no kernel, no display, no IPython magic. A cell that passes here needs only Python and the course.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import nbformat

from labkit.machine import has_gpu


def run_cells(
    nb: nbformat.NotebookNode, name: str, leave_out: Iterable[str] = (), go_on: bool = False
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the names that the cells defined, what came out of each code cell).

    Args:
        leave_out: tags of cells that are not run.
        go_on: after a cell that raises, run the next, as nbval does. Else the exception is raised here.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    code_cells = [c for c in nb.cells if c.cell_type == "code"]
    for number, cell in enumerate(code_cells):
        tags = cell.metadata.get("tags", [])
        about = {"notebook": name, "number": number, "tags": list(tags), "source": cell.source}
        if set(tags) & set(leave_out) or ("gpu" in tags and not has_gpu()):
            cells.append(about | {"outcome": "skipped", "error": "", "message": ""})
            continue
        filename = f"<{name}, code cell {number + 1}>"
        lines = cell.source.splitlines(keepends=True)
        linecache.cache[filename] = (
            len(cell.source),
            None,
            lines,
            filename,
        )  # for inspect and for tracebacks
        try:
            exec(compile(cell.source, filename, "exec"), names)
        except Exception as error:
            if not go_on:
                raise
            cells.append(about | {"outcome": "failed", "error": type(error).__name__, "message": str(error)})
        else:
            cells.append(about | {"outcome": "passed", "error": "", "message": ""})
    return names, cells


def main(argv: Sequence[str] | None = None) -> int:
    found = []
    for word in sys.argv[1:] if argv is None else argv:
        path = Path(word).resolve()
        os.chdir(path.parent)  # as Jupyter does
        with contextlib.redirect_stdout(io.StringIO()):
            found += run_cells(nbformat.read(path, as_version=4), path.stem, go_on=True)[1]
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
