"""Figures and tables in a notebook's output.

Of an output that is folded JupyterLab still shows the first line that is not empty. So nothing is told there.
"""

import html
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from IPython.display import Image, display
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from labkit.predictions import show_value
from web.pieces.piece import BLANK


def show_figure(fig: Figure) -> None:
    """Put a figure of `labkit.figures` into the output, as a picture whose text is its title."""
    file = io.BytesIO()
    fig.savefig(file, format="png")
    plt.close(fig)
    title = (
        " ".join(fig.texts[0].get_text().split()) if fig.texts else "a figure"
    )  # one line, as `new_figure` got it
    picture, about = Image(file.getvalue(), alt=title)._repr_mimebundle_()
    display(picture | {"text/plain": f"A figure:\n{title}"}, metadata=about, raw=True)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; numbers are written for people and stand to the right, words to the left."""
    rows = [list(row) for row in rows]
    is_word = [
        any(isinstance(row[i], str) and not _is_figure(row[i]) for row in rows) for i in range(len(columns))
    ]
    lines = [list(columns), *([show_value(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]

    def html_row(tag: str, line: list[str]) -> str:
        cells = (
            f'<{tag} style="text-align: {"left" if word else "right"}">{html.escape(cell)}</{tag}>'
            for cell, word in zip(line, is_word, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(html_row("td", line) for line in lines[1:])
    table = f"{BLANK}<table><thead>{html_row('th', lines[0])}</thead><tbody>{body}</tbody></table>"
    plain = [
        "  ".join(c.ljust(w) if word else c.rjust(w) for c, w, word in zip(line, widths, is_word)).rstrip()
        for line in lines
    ]
    display({"text/html": table, "text/plain": "\n".join(plain)}, raw=True)


def _is_figure(text: str) -> bool:
    """A figure that was written out, such as "23%"; "none" stands where one is missing."""
    return text == "none" or re.fullmatch(r"-?[\d.,]+ ?%?", text) is not None
