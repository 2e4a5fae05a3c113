"""Companion notebooks for a computer on the web, where the course is not installed: `make online REPOSITORY=...`

    python -m exercises.publishing.online https://github.com/you/inference-lab

Writes notebooks/online/: each companion with a badge that opens it in Google Colab, and a first cell that fetches the course
from that address and installs it; and a page with the badges.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat

from exercises.publishing.build_notebooks import NOTEBOOKS, companions, read_notebook
from labkit.errors import LabError
from labkit.paths import short, write_whole
from labkit.terminal import run

COLAB = "https://colab.research.google.com"
INSTALL = """# Fetches the course and installs it: some minutes, once. Where it is installed, this does nothing.
import importlib.util
import os
import subprocess
import sys

if importlib.util.find_spec("labkit") is None:
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", "{repository}", "inference-lab"], check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "-r", "requirements.txt"]
    subprocess.run(pip, cwd="inference-lab", check=True)
    sys.path.insert(0, os.path.abspath("inference-lab"))
    os.chdir("inference-lab/notebooks")
if "google.colab" in sys.modules:  # it shows the interactive pieces only if asked to
    from google.colab import output

    output.enable_custom_widget_manager()"""


def badge(repository: str, stem: str) -> str:
    """The badge of one notebook, in Markdown.

    Raises:
        LabError: the address is not one of GitHub's, where Colab could fetch it.
    """
    found = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(\.git)?/?", repository)
    if found is None:
        raise LabError(
            f"{repository!r} is no address like https://github.com/you/inference-lab: Colab opens only those"
        )
    notebook = f"{COLAB}/github/{found[1]}/blob/main/notebooks/online/{stem}.ipynb"
    return f"[![Open in Colab]({COLAB}/assets/colab-badge.svg)]({notebook})"


def with_install_cell(nb: nbformat.NotebookNode, repository: str, line: str = "") -> nbformat.NotebookNode:
    """The same notebook without outputs; the cell that installs comes before its first code."""
    first = next(i for i, cell in enumerate(nb.cells) if cell.cell_type == "code")
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    cell = nbformat.v4.new_code_cell(INSTALL.format(repository=repository), id="install")
    nb.cells.insert(first, cell)
    nb.cells.insert(0, nbformat.v4.new_markdown_cell(line, id="badge"))
    return nb


def publish(repository: str, folder: Path) -> list[Path]:
    """Write the notebooks and the page with their badges."""
    written, page = (
        [],
        "# The notebooks, on a computer on the web\n\nThe first cell of each installs the course.\n\n",
    )
    for source in companions():
        line = badge(repository, source.stem)
        page += f"- {source.stem} {line}\n"
        path = folder / f"{source.stem}.ipynb"
        nb = with_install_cell(read_notebook(source), repository, line)
        write_whole(path, nbformat.writes(nb, version=4) + "\n")
        written.append(path)
    write_whole(folder / "README.md", page)
    return [*written, folder / "README.md"]


def main(argv: Sequence[str] | None = None) -> int | None:
    words = list(sys.argv[1:] if argv is None else argv)

    def write() -> None:
        if len(words) != 1:
            raise LabError(
                "one address is needed: make online REPOSITORY=https://github.com/you/inference-lab"
            )
        for path in publish(words[0], NOTEBOOKS / "online"):
            print(f"wrote {short(path)}")

    return run(write)


if __name__ == "__main__":
    raise SystemExit(main())
