"""What `lab grade` shows and writes."""

import csv
import io
from collections import Counter
from textwrap import shorten
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from exercises.classroom.grade import COPIED, Graded
from exercises.classroom.submission import Submission, Unread
from exercises.judging.sandbox import UNHARMED
from exercises.judging.sources import all_sources, name_of
from exercises.publishing.commands import level_of
from labkit.terminal import escape

COLUMNS = (
    *("learner", "exercise", "state", "points", "mistake", "tries", "hints", "noted as solved"),
    *("look at", "what was said"),
)


def show(console: Console, submissions: list[Submission], graded: list[Graded], only: set[str]) -> None:
    """A line a learner; then what to look at; then the mistakes that were met most.

    Args:
        only: the exercises that are compared; the core if there are none.
    """
    asked = only or [name_of(source) for source in all_sources() if level_of(source) == "core"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("learner", overflow="ellipsis", no_wrap=True, max_width=24)
    for column in ("chosen" if only else "core", "solved", "tries", "hints", "look at"):
        table.add_column(column, justify="right", no_wrap=True)
    for submission in submissions:
        own = [one for one in graded if one.learner == submission.learner]
        core = f"{sum(one.solved and one.exercise in asked for one in own)} of {len(asked)}"
        tried = [one.solved for one in own if one.verdict.state != "not attempted"]
        solved = core, f"{sum(tried)} of {len(tried)}"
        notes = str(sum(one.answer.tries for one in own)), str(sum(one.answer.hints for one in own))
        looks = sum(bool(one.look_at) for one in own)
        table.add_row(escape(submission.learner), *solved, *notes, f"[yellow]{looks or ''}[/]")
    console.print(table)
    console.print("[dim]solved: of the answers that were handed in, without those not attempted[/]")
    if any(one.look_at for one in graded):
        console.print("\n[bold]Look at these[/] (a reason to ask, not a proof)")
    for one in graded:
        for why in one.look_at:
            why = shorten(why, 120, placeholder=" ...")  # the file names all learners with the same answer
            console.print(escape(f"{one.learner} {one.exercise.partition('_')[0]}: {why}"), highlight=False)
    mistakes = Counter((one.exercise, one.verdict.diagnosis) for one in graded if one.verdict.diagnosis)
    if mistakes:
        console.print("\n[bold]Mistakes met most[/]")
    for (exercise, diagnosis), times in mistakes.most_common(10):
        console.print(f"{times:3} {exercise.partition('_')[0]} {escape(diagnosis)}", highlight=False)


def as_csv(graded: list[Graded], unread: list[Unread]) -> str:
    """A line an answer, and one for each file that could not be read."""
    rows: list[list[Any]] = []
    for one in graded:
        answer, verdict = one.answer, one.verdict
        points = 3 * (one.solved and COPIED not in one.look_at)
        row = [one.learner, one.exercise, verdict.state, points, verdict.diagnosis, answer.tries]
        row += [answer.hints, "yes" if answer.solved else "no", "; ".join(one.look_at)]
        rows.append([*row, verdict.says.removesuffix(UNHARMED)])  # that is for the learner
    rows += [[file.name, "", "not read", *[""] * 6, file.why] for file in unread]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_as_text(value) for value in row] for row in rows)
    # Excel takes a file without the mark at its beginning for one in an old encoding.
    return "\ufeff" + text.getvalue().encode("utf-8", "backslashreplace").decode()


def _as_text(value: str | int) -> str | int:
    """A text that a spreadsheet would take for a formula gets a quotation mark."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
