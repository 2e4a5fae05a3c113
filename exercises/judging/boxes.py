"""The one box that a check or a hint shows, in colour in a terminal and in Jupyter.

It has no lines at its sides, so that code can be copied from it.
"""

import textwrap
from dataclasses import dataclass

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from exercises.judging.judge import Exercise
from exercises.judging.verdict import Verdict
from labkit.terminal import Page, open_streams

LOOKS = {  # mark and colour, which is read on a light and on a dark ground
    "correct": ("✓", "rgb(46,158,91)"),
    "not yet": ("✗", "rgb(214,120,0)"),
    "not attempted": ("○", "rgb(128,136,148)"),
    "hint": ("?", "rgb(52,120,214)"),
}
RUNGS = ("a nudge", "the formula", "in pseudo-code", "the solution")


@dataclass(frozen=True)
class Box:
    """A heading and parts, each with its label; texts as learners and graders write them."""

    state: str
    heading: str
    parts: tuple[tuple[str, str], ...]
    footer: str = ""

    def __rich__(self) -> Panel:
        mark, colour = LOOKS[self.state]
        rows: list[Text | Padding] = []
        for label, text in self.parts:
            rows += [*[Text(f"\n{label}")] * bool(label), Padding(Text(text), (0, 0, 0, 2 * bool(label)))]
        rows += [Text(f"\n{self.footer}")] * bool(self.footer)
        title = Text(f"{mark} {self.heading}", f"bold {colour}")
        look = dict(box=box.HORIZONTALS, border_style=colour, title_align="left")
        return Panel(Group(*rows), title=title, **look)


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
    return Box(verdict.state, f"{words} · {exercise.heading}", parts_of(verdict), footer)


def parts_of(
    verdict: Verdict, got: str = "your answer gave", expected: str = "expected"
) -> tuple[tuple[str, str], ...]:
    parts = ("", verdict.says), ("tried", verdict.tried), (got, verdict.got), (expected, verdict.expected)
    return tuple(part for part in parts if part[1])


def hint_box(exercise: Exercise, rung: int, text: str) -> Box:
    """One rung of the ladder of hints."""
    rungs = len(exercise.hints) + 1
    heading = f"Hint {rung} of {rungs}, {RUNGS[rung - 1]} · {exercise.heading}"
    footer = "Type the solution yourself: that helps to remember it."
    if rung < rungs:
        footer = "Try it and run check(...). After a check that fails, a second call gives the next hint; "
        footer += f'in the notebook, hint("{exercise.name}", {rung + 1}) gives it at once.'
    return Box("hint", heading, (("", textwrap.dedent(text).strip("\n")),), footer)


def display(box: Box) -> None:
    """Show a box."""
    open_streams()
    Page(highlight=False).print(box)
