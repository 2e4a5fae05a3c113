"""`lab submit NAME` and `lab grade FOLDER [--only EXERCISE ...]`."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from exercises.classroom import report
from exercises.classroom.grade import Graded, grade, note_alike
from exercises.classroom.room import has_walls
from exercises.classroom.submission import (
    OF_SOME,
    TABLE,
    Submission,
    Unread,
    is_copied,
    submissions_in,
    submit,
)
from exercises.judging import progress
from exercises.judging.sources import all_names, the_one
from labkit.errors import LabError
from labkit.foreign import visible
from labkit.paths import ROOT, check_writable, short, write_whole
from labkit.terminal import Page, escape, run

UNPROTECTED = (
    "This machine gives no namespaces (Linux from 5.12 on, with unshare, has them). Answers would run with your rights: they could "
    "read and write your files, use the network and change other learners' grades. In the container they cannot (docs/TEACHING.md of the full course)."
)


def hand_in(console: Console, learner: str) -> int:
    """Write one file with all answers."""
    folder = ROOT / "notebooks" / "exercises"
    for path in sorted(folder.glob("*.ipynb")):
        if path.stem not in all_names() and ".bak-" not in path.name:  # `lab reset` writes these
            says = f"{visible(path.name, 100)} is left out: no exercise has this name"
            console.print(f"[yellow]{escape(says)}[/]", soft_wrap=True)
    submission, path = submit(learner, folder)
    answers = submission.answers.values()
    many = "1 answer" if len(answers) == 1 else f"{len(answers)} answers"
    console.print(f"{many}, {sum(bool(a.solved) for a in answers)} noted as solved")
    for name, answer in submission.answers.items():
        if is_copied(name, answer.cells):
            console.print(f"[yellow]{name} is the solution, copied: `lab grade` tells your teacher[/]")
    for name, entry in progress.load().items():
        if entry["solved"] and name not in submission.answers:
            console.print(f"[yellow]{escape(name)} is noted as solved, and no answer to it is in the file[/]")
    console.print(f"hand in this file: {escape(short(path))}", soft_wrap=True)
    console.print("[dim]It is signed by nothing: your teacher runs the answers again.[/]")
    return 0


def grade_folder(console: Console, folder: str, *words: str) -> int:
    """Run all answers again, or those to some exercises; show what came out, and write it beside them as a table."""
    if not hasattr(os, "fork"):
        raise LabError(
            "lab grade needs Linux, macOS, WSL or the container (docs/TEACHING.md of the full course)"
        )
    only = {the_one(word, all_names(), "exercise", "; `lab progress` lists them") for word in words}
    handed_in = submissions_in(Path(folder))
    submissions = [found for found in handed_in if isinstance(found, Submission)]
    unread = [found for found in handed_in if isinstance(found, Unread)]
    for found in unread:
        console.print(f"[yellow]{escape(f'{found.name}: {found.why}')}[/]", soft_wrap=True)
    if not submissions:
        raise LabError(f"nothing was handed in: no file of `lab submit` in {folder}")
    for submission in submissions if only else ():
        submission.answers = {name: a for name, a in submission.answers.items() if name in only}
    table = Path(folder) / (OF_SOME if only else TABLE)
    check_writable(table)
    isolated = has_walls() or not _agreed(console)
    graded: list[Graded] = []
    found = grade(submissions, isolated, os.cpu_count() or 1)
    with closing(found), Progress(console=console, transient=True) as bar:
        for submission in bar.track(submissions, description="running the answers"):
            graded += islice(found, len(submission.answers))
            write_whole(table, report.as_csv(graded, unread))  # which stays, however the command ends
    note_alike(graded)
    write_whole(table, report.as_csv(graded, unread))
    report.show(console, submissions, graded, only)
    console.print(f"\na line an answer: {escape(short(table))}", soft_wrap=True)
    return 0


def _agreed(console: Console) -> bool:
    """Whether the person who grades agrees to run the answers without walls.

    Raises:
        LabError: they do not agree.
    """
    console.print(f"[yellow]{UNPROTECTED}[/]")
    console.print("Type yes to run them all the same: ", end="")
    with suppress(EOFError):
        if input().strip().lower() == "yes":
            return True
    raise LabError("nothing was run: grade on Linux or in the container, or type yes")


def main(argv: Sequence[str] | None = None) -> int:
    """submit NAME | grade FOLDER [EXERCISE ...]; `lab` has the options."""
    command, *words = sys.argv[1:] if argv is None else argv
    does = {"submit": hand_in, "grade": grade_folder}[command]
    if argv is None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which closes the rooms
    return run(lambda: does(Page(highlight=False), *words))


if __name__ == "__main__":
    raise SystemExit(main())
