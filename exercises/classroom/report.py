"""What `lab grade` shows and writes."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from exercises.classroom.grade import Graded
from exercises.classroom.submission import Submission, Unread
from exercises.judging.sandbox import UNHARMED
from exercises.judging.sources import all_names
from labkit.terminal import escape

COLUMNS = (
    *("learner", "exercise", "state", "mistake", "tries", "hints", "noted as solved"),
    *("first try", "solved at", "look at", "what was said"),
)
TOTALS = ("learner", "solved", "handed in", "exercises in course", "tries", "hints", "to look at", "not read")
ALWAYS_TOLD = ("endless", "ends-python", "crashes-python", "ends-the-grading")  # mistakes, however rare


def short_name(exercise: str) -> str:
    return exercise.partition("_")[0]


@dataclass(frozen=True)
class Total:
    """What a learner's answers sum up to."""

    learner: str
    solved: int
    handed_in: int
    tries: int
    hints: int
    looks: int


def totals_of(submissions: list[Submission], graded: list[Graded]) -> list[Total]:
    found = []
    for submission in submissions:
        own = [one for one in graded if one.learner == submission.learner]
        tries, hints = sum(one.answer.tries for one in own), sum(one.answer.hints for one in own)
        looks, solved = sum(bool(one.look_at) for one in own), sum(one.solved for one in own)
        found.append(Total(submission.learner, solved, len(own), tries, hints, looks))
    return found


def show(console: Console, totals: list[Total], graded: list[Graded]) -> None:
    """A line a learner; then what to look at; then the mistakes that were met most."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("learner", overflow="ellipsis", no_wrap=True, max_width=24)
    for column in ("solved", "tries", "hints", "look at"):
        table.add_column(column, justify="right", no_wrap=True)
    for total in totals:
        looks = f"[yellow]{total.looks}[/]" if total.looks else ""
        solved = f"{total.solved} of {total.handed_in}"
        table.add_row(escape(total.learner), solved, str(total.tries), str(total.hints), looks)
    console.print(table)
    console.print(f"[dim]of the answers that were handed in; the course has {len(all_names())} exercises[/]")
    if any(one.look_at for one in graded):
        console.print("\n[bold]Look at these[/] (a reason to ask, not a proof)")
    for one in graded:
        for why in one.look_at:
            console.print(escape(f"{one.learner} {short_name(one.exercise)}: {why}"), highlight=False)
    mistakes = Counter((one.exercise, one.verdict.diagnosis) for one in graded if one.verdict.diagnosis)
    if mistakes:
        console.print("\n[bold]Mistakes met most[/]")
        for place, ((exercise, diagnosis), times) in enumerate(mistakes.most_common()):
            if place < 8 or diagnosis in ALWAYS_TOLD:
                console.print(f"{times:3} {short_name(exercise)} {escape(diagnosis)}", highlight=False)


def as_csv(graded: list[Graded]) -> str:
    """A line an answer."""
    rows = []
    for one in graded:
        answer, verdict = one.answer, one.verdict
        row = [one.learner, one.exercise, verdict.state, verdict.diagnosis, answer.tries, answer.hints]
        row += ["yes" if answer.solved else "no", answer.first_try, answer.solved_at, "; ".join(one.look_at)]
        rows.append([*row, verdict.says.removesuffix(UNHARMED)])  # that is for the learner
    return _table(COLUMNS, rows)


def totals_as_csv(totals: list[Total], unread: list[Unread]) -> str:
    """One line per learner, those included whose file could not be read."""
    of = len(all_names())
    rows = [[t.learner, t.solved, t.handed_in, of, t.tries, t.hints, t.looks, ""] for t in totals]
    return _table(TOTALS, rows + [[u.name, 0, 0, of, 0, 0, 0, u.why] for u in unread])


def _table(columns: Sequence[str], rows: list[list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_as_text(value) for value in row] for row in rows)
    return text.getvalue().encode("utf-8", "backslashreplace").decode()


def _as_text(value: str | int) -> str | int:
    """A text that a spreadsheet would take for a formula gets a quotation mark."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
