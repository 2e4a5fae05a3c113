"""Run the cells of notebooks in this Python process, without Jupyter: quick, and enough to see which cells fail.

It is not nbval: no kernel, no display, no IPython magic. A cell that passes here needs only Python and the course.
"""

import linecache
from typing import Any

import nbformat

from labkit.machine import has_gpu


def run_cells(
    nb: nbformat.NotebookNode, name: str, go_on: bool = False
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the names that the cells defined, what came out of each code cell).

    Args:
        go_on: after a cell that raises, run the next, as nbval does. Else the exception is raised here.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    code_cells = [c for c in nb.cells if c.cell_type == "code"]
    for number, cell in enumerate(code_cells):
        tags = cell.metadata.get("tags", [])
        about = {"notebook": name, "number": number, "tags": list(tags), "source": cell.source}
        if "gpu" in tags and not has_gpu():
            cells.append(about | {"outcome": "skipped", "error": "", "message": ""})
            continue
        filename = f"<{name}, code cell {number + 1}>"
        lines = cell.source.splitlines(keepends=True)
        linecache.cache[filename] = len(cell.source), None, lines, filename  # for inspect and tracebacks
        try:
            exec(compile(cell.source, filename, "exec"), names)
        except Exception as error:
            if not go_on:
                raise
            cells.append(about | {"outcome": "failed", "error": type(error).__name__, "message": str(error)})
        else:
            cells.append(about | {"outcome": "passed", "error": "", "message": ""})
    return names, cells


def without_magic(cell: str) -> str:
    """A cell without Jupyter's own commands, which are not Python."""
    return "\n".join(line for line in cell.splitlines() if not line.lstrip().startswith(("%", "!")))
