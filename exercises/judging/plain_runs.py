"""Run the cells of notebooks in this Python process, without Jupyter: quick, and enough to see which cells fail.

It is not nbval: no kernel, no display. A cell that passes here needs only Python and the course.
"""

from typing import Any
from unittest.mock import MagicMock

from IPython.core.inputtransformer2 import TransformerManager

from exercises.judging.sources import execute
from labkit.machine import has_gpu


def run_cells(nb: Any, name: str, go_on: bool = False) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the names that the cells defined, what came out of each code cell).

    Args:
        nb: a notebook, or an object with such `cells`.
        go_on: after a cell that raises, run the next, as nbval does. Else the exception is raised here.
    """
    jupyter = MagicMock()  # %timeit, !ls and their like do nothing; the cell below %%time is run
    names: dict[str, Any] = {"__name__": "__main__", "get_ipython": jupyter}
    jupyter().run_cell_magic.side_effect = lambda magic, line, cell: exec(cell, names)
    cells: list[dict[str, Any]] = []
    for number, cell in enumerate(c for c in nb.cells if c.cell_type == "code"):
        came_out = {"number": number, "source": cell.source, "tags": list(cell.metadata.get("tags", []))}
        came_out |= {"outcome": "passed", "error": "", "message": ""}
        cells.append(came_out)
        if "gpu" in came_out["tags"] and not has_gpu():
            came_out["outcome"] = "skipped"
            continue
        try:
            source = TransformerManager().transform_cell(cell.source)
            execute(source, f"<{name}, code cell {number + 1}>", names)
        except Exception as error:
            if not go_on:
                raise
            came_out |= {"outcome": "failed", "error": type(error).__name__, "message": str(error)}
    return names, cells
