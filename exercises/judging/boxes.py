"""The one box that a check or a hint shows: HTML in Jupyter, plain text elsewhere.

The HTML brings its own few styles and nothing from outside. Its colours are a line at the side and a faint
ground over whatever the theme has; the text keeps the theme's own colour, so it reads in light and dark.
"""

import io
import re
import sys
import textwrap
from dataclasses import dataclass
from html import escape

from exercises.judging.sources import heading_of
from exercises.judging.verdict import Exercise, Verdict

WIDTH = 100
MARKS = {"correct": "✓", "not yet": "✗", "not attempted": "○", "hint": "?"}
COLOURS = {
    "correct": "46, 158, 91",
    "not yet": "214, 120, 0",
    "not attempted": "128, 136, 148",
    "hint": "52, 120, 214",
}
FRAME = "padding:0.5em 1em; max-width:52em; line-height:1.45; overflow-wrap:break-word; word-break:normal"
CODE = "white-space:pre-wrap; word-break:normal; background:transparent; color:inherit; text-align:left"
RUNGS = ("a nudge", "the formula", "in pseudo-code", "the solution")


@dataclass(frozen=True)
class Box:
    """A heading and parts: (label, text, whether it is code, to be shown line by line)."""

    state: str
    heading: str
    parts: tuple[tuple[str, str, bool], ...]
    footer: str = ""

    def _repr_html_(self) -> str:
        rgb = COLOURS[self.state]
        rows = [f'<b><span style="color:rgb({rgb})">{MARKS[self.state]}</span> {escape(self.heading)}</b>']
        for label, text, is_code in self.parts:
            body = f'<pre style="{CODE}">{escape(text)}</pre>' if is_code else _prose(text)
            rows.append(f'<span style="opacity:0.7">{escape(label)}</span>{body}')
        if self.footer:
            rows.append(f'<small style="opacity:0.7">{_prose(self.footer)}</small>')
        inside = "".join(f'<div style="margin-top:0.4em">{row}</div>' for row in rows)
        look = f"border-left:5px solid rgb({rgb}); background:rgba({rgb}, 0.10); {FRAME}"
        return f'<div class="inference-lab-box" style="{look}">{inside}</div>'

    def __str__(self) -> str:
        lines = [f"┌ {MARKS[self.state]} {self.heading}"]
        for label, text, is_code in self.parts:
            lines += ["", *[label] * bool(label)]
            for paragraph in text.split("\n" if is_code else "\n\n"):
                margin = re.match(" *", paragraph)[0][: WIDTH // 2] + "  " * bool(label)
                how = dict(
                    replace_whitespace=not is_code, break_on_hyphens=False, initial_indent="  " * bool(label)
                )
                lines += textwrap.wrap(paragraph, WIDTH - 4, subsequent_indent=margin, **how) or [""]
        if self.footer:
            lines += ["", *textwrap.wrap(self.footer, WIDTH - 4, break_on_hyphens=False)]
        return "\n│ ".join(lines).replace("│ \n", "│\n") + "\n└"

    __repr__ = __str__


def verdict_box(exercise: Exercise, verdict: Verdict, tries: int | None = None) -> Box:
    """What a check found. `tries`: how many answers it took; 0: it was solved before; None: nothing is noted."""
    words = {"correct": "Correct", "not yet": "Not yet", "not attempted": "Not attempted"}[verdict.state]
    footer = ""
    if verdict.state == "not yet":
        footer = f'Stuck? hint("{exercise.name}")'
    elif verdict.state == "not attempted":
        footer = f'Where to begin? hint("{exercise.name}")'
    elif tries is not None:
        footer = {0: "Solved.", 1: "Solved at the first try."}.get(tries, f"Solved, after {tries} tries.")
    return Box(verdict.state, f"{words} · {heading_of(exercise.name)}", _parts(verdict), footer)


def engine_box(verdict: Verdict) -> Box:
    """The box for a result in the engine that differs from that of the course's own part."""
    return Box(
        "not yet", "Not yet the same in the engine", _parts(verdict, "with yours", "with the course's")
    )


def _parts(
    verdict: Verdict, got: str = "your answer gave", expected: str = "expected"
) -> tuple[tuple[str, str, bool], ...]:
    parts: list[tuple[str, str, bool]] = []
    if verdict.says:
        parts.append(("", verdict.says, False))
    for label, text in (("tried", verdict.tried), (got, verdict.got), (expected, verdict.expected)):
        if text:
            parts.append((label, text, True))
    return tuple(parts)


def hint_box(exercise: Exercise, rung: int, text: str) -> Box:
    """One rung of the ladder of hints."""
    text = textwrap.dedent(text).strip("\n")
    rungs = len(exercise.hints) + 1
    heading = f"Hint {rung} of {rungs}, {RUNGS[min(rung, len(RUNGS)) - 1]} · {heading_of(exercise.name)}"
    footer = "Type the solution yourself: that helps to remember it."
    if rung < rungs:
        footer = "Try it and run check(...). After a check that fails, this cell gives the next hint, "
        footer += f'and hint("{exercise.name}", {rung + 1}) gives it at once.'
    return Box("hint", heading, (("", text, rung >= 3 or "\n" in text),), footer)


def display(box: Box) -> None:
    """Show a box: in Jupyter as HTML, with the plain text beside it; elsewhere as text."""
    if "IPython" in sys.modules:
        shell = sys.modules["IPython"].get_ipython()
        if shell is not None and hasattr(shell, "kernel"):
            from IPython.display import display as show

            show(box)
            return
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    print(box)


def _prose(text: str) -> str:
    """As HTML: an empty line parts paragraphs, and `name` is code, as in Markdown."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text)).replace("\n\n", "<br><br>")
