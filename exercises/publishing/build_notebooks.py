"""Write the notebooks of the exercises, and run the companions: python -m exercises.publishing.build_notebooks [--execute [NAME ...]]

exercises/phaseN/*.py     -> notebooks/exercises/*.ipynb (a stub in place of the solution) and notebooks/solutions/*.ipynb
notebooks/phaseN_*.ipynb  -> the same with the outputs of a fresh run (--execute: it takes minutes)

A companion notebook is its own source: change its cells in Jupyter, then run it here.

The files are the same, byte for byte, at every run: cells have fixed ids, and the files contain nothing of the machine.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError

from exercises.judging.sources import all_names, cut, name_of, source_of
from exercises.publishing.notebook_runs import Client, read_notebook
from labkit.catalog import SCRIPTS
from labkit.errors import LabError
from labkit.paths import ROOT, short, write_whole

NOTEBOOKS = ROOT / "notebooks"
STUDENT, SOLUTION = NOTEBOOKS / "exercises", NOTEBOOKS / "solutions"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# The first line of the first code cell, and of cells with these tags.
RUN = {
    "first": "# Run this cell first (Shift+Enter).\n",
    "check": "# Run this cell after each change of your answer.\n",
    "engine": "# Run this cell once your answer is right.\n",
}
REBUILD = "python -m exercises.publishing.build_notebooks"


# ------------------------------------------------------------------ from source to notebook


def read_source(path: Path, name: str) -> nbformat.NotebookNode:
    """Read a py:percent source as a notebook. Of a cell's metadata only the tags are kept."""
    text = path.read_text(encoding="utf-8")
    nb = jupytext.reads(text, fmt="py:percent")
    nb.metadata = nbformat.from_dict(METADATA)
    nb.nbformat, nb.nbformat_minor = 4, 5
    for number, cell in enumerate(nb.cells):
        cell.metadata, cell.id = _metadata(cell), _id(name, number)
    return nb


def _id(name: str, number: int) -> str:
    return f"{name[:58]}-{number:02d}".replace("_", "-")


def _metadata(cell: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a cell's tags. JupyterLab folds the text of a `plumbing` cell, and the output of an `after-guess` cell until it runs."""
    tags = list(cell.metadata.get("tags", ()))
    kept: dict[str, Any] = {"tags": tags} if tags else {}
    if "after-guess" in tags and cell.cell_type == "code":
        kept["jupyter"] = {"outputs_hidden": True}
    if "plumbing" in tags:
        kept["jupyter"] = {"source_hidden": True}
    return nbformat.from_dict(kept)


def build_student(path: Path) -> nbformat.NotebookNode:
    """Build the notebook for the learner."""
    return _build(path, solved=False)


def build_solution(path: Path) -> nbformat.NotebookNode:
    """Build the notebook with the solution, and a line about it at the top."""
    nb = _build(path, solved=True)
    note = f"*The solution. The exercise itself: `notebooks/exercises/{name_of(path)}.ipynb`.*"
    first = nb.cells[0]
    if first.cell_type == "markdown":
        heading, _, rest = first.source.partition("\n")
        first.source = f"{heading}\n\n{note}\n{rest}".rstrip()
    return nb


def _build(path: Path, solved: bool) -> nbformat.NotebookNode:
    nb = read_source(path, name_of(path))
    started = False
    for before, cell in zip([nb.cells[0], *nb.cells], nb.cells):
        if cell.cell_type == "markdown" and "check" in before.metadata.get("tags", ()):
            stuck = f'Stuck? Run `hint("{name_of(path)}")`, and again after your next try.'
            cell.source = f"{stuck}\n\n{cell.source}"
        if cell.cell_type == "code":
            both = cut(cell.source)
            when = RUN.get(next(iter(cell.metadata.get("tags", ())), ""), "") if started else RUN["first"]
            cell.source, started = when + (both.solution if solved else both.student), True
    return nb


def text_of(nb: nbformat.NotebookNode) -> str:
    """Return the file's text. It contains a fingerprint of the cells, which later shows whether a learner has changed them."""
    nb.metadata["inference_lab"] = {"cells": fingerprint(nb)}
    return nbformat.writes(nb, version=4).rstrip("\n") + "\n"


def fingerprint(nb: nbformat.NotebookNode) -> str:
    return hashlib.sha256(json.dumps(cells_of(nb)).encode()).hexdigest()[:16]


def companions() -> list[Path]:
    """Return the companion notebooks of the phases."""
    return [NOTEBOOKS / f"{phase}.ipynb" for phase in SCRIPTS]


def renew_pieces(nb: nbformat.NotebookNode) -> None:
    """Put the current modules (web/pieces) into a notebook's outputs; data and text of the run stay unchanged."""
    from web.pieces.piece import BLANK, piece_in

    for output in (output for cell in nb.cells for output in cell.get("outputs", ())):
        if piece := piece_in(output.get("data", {}).get("text/html", "")):
            output.data["text/html"] = BLANK + piece.fragment()


# ------------------------------------------------------------------ what is stale


def wanted() -> dict[Path, str]:
    """Return the wanted text of every generated notebook of the exercises."""
    texts = {}
    for name in all_names():
        source = source_of(name)
        texts[STUDENT / f"{name}.ipynb"] = text_of(build_student(source))
        texts[SOLUTION / f"{name}.ipynb"] = text_of(build_solution(source))
    return texts


def stale() -> dict[Path, str]:
    """Return the notebooks that differ from their sources, with the wanted text; "" for a notebook without a source."""
    texts = wanted()
    found = {p: text for p, text in texts.items() if not p.is_file() or p.read_text(encoding="utf-8") != text}
    there = (path for folder in (STUDENT, SOLUTION) for path in folder.glob("p?[ed]*.ipynb"))
    return found | {path: "" for path in there if path not in texts and "." not in path.stem}


def cells_of(nb: nbformat.NotebookNode) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return a notebook without its outputs: kind, text and tags of each cell."""
    return [(c.cell_type, c.source, tuple(c.metadata.get("tags", ()))) for c in nb.cells]


def written_in(nb: nbformat.NotebookNode) -> bool:
    """Tell whether the cells have changed since the notebook was generated. Running them does not count."""
    return nb.metadata.get("inference_lab", {}).get("cells") != fingerprint(nb)


def has_been_worked_in(path: Path) -> bool:
    """Tell whether a learner has written in this notebook, or run cells of an exercise, since it was generated."""
    try:
        nb = read_notebook(path)
    except LabError:  # the course did not write this file
        return True
    if written_in(nb):
        return True
    code = [c for c in nb.cells if c.cell_type == "code"]
    if path.parent != NOTEBOOKS:
        return any(c.outputs or c.execution_count is not None for c in code)
    ran = [c.execution_count for c in code if "gpu" not in c.metadata.get("tags", ())]
    return ran != list(range(1, len(ran) + 1)) or any(c.metadata != _metadata(c) for c in code)


def keep_old(path: Path) -> Path:
    """Copy a notebook to NAME.bak-1.ipynb, or the next number that is free."""
    names = (path.with_suffix(f".bak-{number}.ipynb") for number in count(1))
    backup = next(name for name in names if not name.exists())
    with backup.open("xb") as file:  # x: never overwrite a notebook
        file.write(path.read_bytes())
    return backup


# ------------------------------------------------------------------ executing


def execute(path: Path, seconds: int = 120) -> nbformat.NotebookNode:
    """Run a companion notebook, and return it with the outputs. Without a GPU, cells tagged `gpu` keep their outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    nb = read_notebook(path)
    Client(nb, NOTEBOOKS, seconds).run()
    nb.metadata = nbformat.from_dict(
        METADATA | ({"widgets": nb.metadata.widgets} if nb.metadata.get("widgets") else {})
    )
    number = 0
    for place, cell in enumerate(nb.cells):
        cell.metadata, cell.id = _metadata(cell), _id(path.stem, place)
        if cell.cell_type == "code" and "gpu" not in cell.metadata.get("tags", ()):
            number += 1  # the same with and without a GPU: 1, 2, ... shows that no learner has run cells
            for told in (cell, *(o for o in cell.outputs if o.output_type == "execute_result")):
                told.execution_count = number
    return nb


# ------------------------------------------------------------------ the command


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=REBUILD, description=(__doc__ or "").splitlines()[0])
    paths = {path.stem: path for path in companions()}
    parser.add_argument(
        "--execute",
        nargs="*",
        choices=paths,
        help="run the companion notebooks, or some of them, and keep their outputs",
    )
    args = parser.parse_args(argv)
    if args.execute is None:
        return _write()
    return _execute([paths[name] for name in args.execute or paths])


def _write() -> int:
    changed = stale()
    for path, text in changed.items():
        if text:
            write(path, text)
        print(f"wrote {short(path)}" if text else f"{short(path)} has no source: remove it")
    print(f"{len(changed)} notebooks changed")
    for path in companions():
        nb = read_notebook(path)
        renew_pieces(nb)
        if (text := text_of(nb)) != path.read_text(encoding="utf-8") and not has_been_worked_in(path):
            write_whole(path, text)
            print(f"{short(path)} has the current pieces")
    return 0


def _execute(paths: Sequence[Path]) -> int:
    failed = 0
    for path in paths:
        try:
            write_whole(path, text_of(execute(path)))
            print(f"ran {short(path)}")
        except (CellExecutionError, CellTimeoutError) as error:
            failed += 1
            print(f"{path.stem}: a cell failed, the notebook is not written\n{error}", file=sys.stderr)
    return 1 if failed else 0


def write(path: Path, text: str) -> None:
    """Write a notebook, and keep a copy of the old one if a learner has worked in it."""
    if path.is_file() and has_been_worked_in(path):
        print(f"{short(path)} was changed by a learner; the old one is kept as {keep_old(path).name}")
    write_whole(path, text)


if __name__ == "__main__":
    raise SystemExit(main())
