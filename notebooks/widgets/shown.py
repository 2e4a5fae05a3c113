"""Figures and tables in a notebook's output.

Of an output that is folded JupyterLab still shows the first line that is not empty. So nothing is told there.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from IPython.display import Image, display
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from labkit.predictions import show_value

BLANK = " \n"  # a first line of which nothing is seen


def show_figure(fig: Figure) -> None:
    """Put a figure of `labkit.figures` into the output, as a picture whose text is its title."""
    file = io.BytesIO()
    fig.savefig(file, format="png")
    plt.close(fig)
    title = fig.texts[0].get_text() if fig.texts else "a figure"
    picture, about = Image(file.getvalue(), alt=title)._repr_mimebundle_()
    display(picture | {"text/plain": f"A figure:\n{title}"}, metadata=about, raw=True)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; numbers are written for people and stand to the right, words to the left."""
    written = [list(row) for row in rows]
    words = [
        any(isinstance(row[i], str) and not _is_figure(row[i]) for row in written)
        for i in range(len(columns))
    ]
    left = ["text-align: left" if is_words else "text-align: right" for is_words in words]
    head = "".join(
        f'<th style="{style}">{html.escape(c)}</th>' for style, c in zip(left, columns, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td style="{style}">{html.escape(show_value(cell))}</td>'
            for style, cell in zip(left, row, strict=True)
        )
        + "</tr>"
        for row in written
    )
    table = f"{BLANK}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    lines = [list(columns), *([show_value(cell) for cell in row] for row in written)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    plain = [
        "  ".join(c.ljust(w) if word else c.rjust(w) for c, w, word in zip(line, widths, words)).rstrip()
        for line in lines
    ]
    display({"text/html": table, "text/plain": "\n".join(plain)}, raw=True)


def _is_figure(text: str) -> bool:
    """A figure that was written out, such as "23%"; "none" stands where one is missing."""
    return text == "none" or re.fullmatch(r"-?[\d.,]+ ?%?", text) is not None
