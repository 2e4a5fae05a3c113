"""Run the cells of notebooks in this Python process, without Jupyter: quick, and enough to see which cells fail.

It is not nbval: no kernel, no display, no IPython magic. A cell that passes here needs only Python and the course.
"""

import ast
import linecache
import re
from typing import Any

import nbformat
from IPython.core.inputtransformer2 import TransformerManager

from labkit.machine import has_gpu


def run_cells(
    nb: nbformat.NotebookNode, name: str, go_on: bool = False
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the names that the cells defined, what came out of each code cell).

    Args:
        go_on: after a cell that raises, run the next, as nbval does. Else the exception is raised here.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    cells: list[dict[str, Any]] = []
    for number, cell in enumerate(c for c in nb.cells if c.cell_type == "code"):
        came_out = {"number": number, "source": cell.source, "tags": list(cell.metadata.get("tags", []))}
        came_out |= {"outcome": "passed", "error": "", "message": ""}
        cells.append(came_out)
        if "gpu" in came_out["tags"] and not has_gpu():
            came_out["outcome"] = "skipped"
            continue
        filename = f"<{name}, code cell {number + 1}>"
        lines = cell.source.splitlines(keepends=True)
        linecache.cache[filename] = len(cell.source), None, lines, filename  # for inspect and tracebacks
        try:
            exec(compile(cell.source, filename, "exec"), names)
        except Exception as error:
            if not go_on:
                raise
            came_out |= {"outcome": "failed", "error": type(error).__name__, "message": str(error)}
    return names, cells


def without_magic(cell: str) -> str:
    """A cell without Jupyter's own commands, which are not Python. A line of arithmetic may begin with % and stays."""
    try:
        ast.parse(cell)
        return cell
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # not Python, or too deep to be parsed
        pass
    if cell.lstrip().startswith("%%"):
        cell = cell.lstrip().partition("\n")[2]  # %%time and its like: the rest is Python
    try:
        python = TransformerManager().transform_cell(cell)
    except SyntaxError:
        return cell
    return re.sub(r"^( *)([\w, ]+= *)?get_ipython\(\)\..*", r"\1pass", python, flags=re.MULTILINE)
