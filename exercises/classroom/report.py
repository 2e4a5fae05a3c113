"""What `lab grade` shows and writes."""

import csv
import io
from collections import Counter

from rich import box
from rich.console import Console
from rich.table import Table

from exercises.classroom.grade import Graded, strange_graders
from exercises.classroom.submission import Submission
from exercises.judging.sources import all_names
from labkit.terminal import escape

COLUMNS = (
    *("learner", "exercise", "state", "mistake", "tries", "hints", "noted as solved"),
    *("first try", "solved at", "look at", "what was said"),
)
TOTALS = ("learner", "solved", "handed in", "of", "tries", "hints", "to look at", "not read")


def short_name(exercise: str) -> str:
    return exercise.partition("_")[0]


def show(console: Console, submissions: list[Submission], graded: list[Graded]) -> None:
    """A line a learner; then what to look at; then the mistakes that were met most."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("learner", overflow="ellipsis", no_wrap=True, max_width=24)
    for column in ("solved", "tries", "hints", "look at"):
        table.add_column(column, justify="right", no_wrap=True)
    for submission in submissions:
        own = [one for one in graded if one.learner == submission.learner]
        looks = sum(bool(one.look_at) for one in own) + strange_graders(submission)
        table.add_row(
            escape(submission.learner),
            f"{sum(one.solved for one in own)} of {len(own)}",
            str(sum(one.tries for one in own)),
            str(sum(one.hints for one in own)),
            f"[yellow]{looks}[/]" if looks else "",
        )
    console.print(table)
    console.print(f"[dim]of the answers that were handed in; the course has {len(all_names())} exercises[/]")
    lines = [
        f"{escape(s.learner)}: its graders are not the course's: changed, or of another version"
        for s in submissions
        if strange_graders(s)
    ]
    for one in graded:
        lines += [f"{escape(one.learner)} {short_name(one.exercise)}: {escape(why)}" for why in one.look_at]
    if lines:
        console.print("\n[bold]Look at these[/] (a reason to ask, not a proof)")
        for line in lines:
            console.print(line, highlight=False)
    mistakes = Counter((one.exercise, one.verdict.diagnosis) for one in graded if one.verdict.diagnosis)
    if mistakes:
        console.print("\n[bold]Mistakes met most[/]")
        for (exercise, diagnosis), times in mistakes.most_common(8):
            console.print(f"{times:3} {short_name(exercise)} {escape(diagnosis)}", highlight=False)


def as_csv(graded: list[Graded]) -> str:
    """A line an answer."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in graded:
        noted = "yes" if one.noted_as_solved else "no"
        row = (
            *(
                one.learner,
                one.exercise,
                one.verdict.state,
                one.verdict.diagnosis,
                one.tries,
                one.hints,
                noted,
            ),
            *(one.first_try, one.solved_at, "; ".join(one.look_at), one.verdict.says),
        )
        writer.writerow([_no_formula(value) for value in row])
    return text.getvalue()


def totals_as_csv(submissions: list[Submission], graded: list[Graded], unread: list[str]) -> str:
    """A line a learner, those too from whom nothing could be read: `unread` are lines such as "gus: no notebook"."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TOTALS)
    for submission in submissions:
        own = [one for one in graded if one.learner == submission.learner]
        looks = sum(bool(one.look_at) for one in own) + strange_graders(submission)
        sums = sum(one.solved for one in own), len(own), len(all_names())
        row = (
            submission.learner,
            *sums,
            sum(one.tries for one in own),
            sum(one.hints for one in own),
            looks,
            "",
        )
        writer.writerow([_no_formula(value) for value in row])
    for line in unread:
        learner, _, why = line.partition(": ")
        writer.writerow([_no_formula(value) for value in (learner, 0, 0, len(all_names()), 0, 0, 0, why)])
    return text.getvalue()


def _no_formula(value: str | int) -> str | int:
    """A text that a spreadsheet would take for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
