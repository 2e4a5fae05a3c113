"""`lab progress`, `lab next`, `lab check NOTEBOOK`, `lab hint EXERCISE` and `lab reset NOTEBOOK`."""

import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from exercises.judging import progress
from exercises.judging.sources import all_names, all_sources, name_of, source_of, the_one, title_of
from labkit.catalog import CORE_EXERCISES, LEVELS, SCRIPTS, chapters_of, first_line
from labkit.errors import LabError
from labkit.paths import ROOT, short, write_whole
from labkit.reports import all_predictions, was_run_in_full
from labkit.terminal import Page, escape, run

NOTEBOOKS = ROOT / "notebooks"


# ------------------------------------------------------------------ lab progress


def show_progress(console: Console) -> int:
    """Print the state of the exercises, the score of the guesses, and the next exercise."""
    notes = progress.load()
    table = Table(title="Exercises", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=0)
    for column in ("name", "exercise", "level", "state"):
        table.add_column(column, no_wrap=column != "exercise")
    table.add_column("hints", justify="right", no_wrap=True)
    sources = all_sources()
    entries = {name_of(source): progress.FRESH | notes.get(name_of(source), {}) for source in sources}
    before = None
    for source in sources:
        name = name_of(source)
        entry = entries[name]
        if source.parent != before:
            table.add_section()
        hints = f"{entry['hints']} of 4" if entry["hints"] else ""
        short_name = name.partition("_")[0]  # `lab check` accepts it
        table.add_row(short_name, escape(title_of(source)), level_of(source), state_of(entry), hints)
        before = source.parent
    console.print(table)
    solved = sum(entry["solved"] for entry in entries.values())
    console.print(f"{solved} of {len(sources)} exercises solved")
    if solved:
        console.print(
            "[dim]in a class? `lab submit 'Your Name'` writes all answers into one file to hand in[/]"
        )
    points, most, reports = predicted_points()
    if reports:
        console.print(f"predictions: {points} of {most} points, {_many(most // 3, 'guess', 'guesses')}")
    else:
        console.print("predictions: none yet. Guess in a notebook, or: lab run kv_cache_lab --predict")
    unsolved = [s for s in sources if not entries[name_of(s)]["solved"]]
    # First an exercise with tries, then core exercises, then others, each in the order of the course.
    following = min(
        unsolved, key=lambda s: (not entries[name_of(s)]["tries"], level_of(s) != "core"), default=None
    )
    if following is None:
        console.print("[green]All exercises are solved. Next, change the engine itself.[/]")
    else:
        suggest_exercise(console, following, entries[name_of(following)])
    return 0


def level_of(source: Path) -> str:
    """Core or not by `CORE_EXERCISES`; else the level of the first chapter beyond the core that names the exercise."""
    number = title_of(source).split()[0]
    if number in CORE_EXERCISES:
        return "core"
    phase = next(p for p in SCRIPTS if p.startswith(source.parent.name))
    levels = (level for level, named in headings_of(phase) if level != "core" and number in named)
    return next(levels, "GPU" if source.parent.name == "phase5" else "deep")


@cache
def headings_of(phase: str) -> list[tuple[str, list[str]]]:
    """Return of each chapter its level, and the scripts and the numbers of exercises below its title."""
    lines = [chapter.read_text(encoding="utf-8").split("\n\n")[1] for chapter in chapters_of(phase)]
    return [(line.split()[1].rstrip("*"), re.findall(r"\w+\.py(?=`)|\d\.\d+[a-c]?", line)) for line in lines]


def suggest_exercise(console: Console, source: Path, entry: dict[str, Any]) -> None:
    name = name_of(source)
    console.print(f"next: {escape(title_of(source))}")
    if (NOTEBOOKS / "exercises" / f"{name}.ipynb").is_file():
        console.print(f"      jupyter lab notebooks/exercises/{name}.ipynb", soft_wrap=True)
    else:
        console.print(f"      its notebook is missing: lab reset {name}")
    if entry["tries"]:
        console.print(f"      last diagnosis: {escape(entry['last'])}")
        console.print(f"      stuck? lab hint {name}")


# ------------------------------------------------------------------ lab next


def show_next(console: Console, level: str) -> int:
    """Print the next step of a path, the core and one level: chapter by chapter, first its scripts, then its exercises."""
    path, notes = {"core", level}, progress.load()
    for phase, names in SCRIPTS.items():
        named = [name for _, in_chapter in headings_of(phase) for name in in_chapter]
        steps = [(name, ROOT / phase / name) for name in names]
        steps += [(title_of(s).split()[0], s) for s in all_sources() if phase.startswith(s.parent.name)]
        for name, step in sorted(steps, key=lambda it: named.index(it[0]) if it[0] in named else len(named)):
            if name in names and names[name] in path and not was_run_in_full(step):
                console.print(f"next: {step.stem} ({names[name]}): {escape(first_line(step))}")
                console.print(f"      lab run {step.stem} --predict")
                return 0
            entry = progress.FRESH | notes.get(name_of(step), {})
            if name not in names and level_of(step) in path and not entry["solved"]:
                suggest_exercise(console, step, entry)
                return 0
    others = " or ".join(f"lab next {other}" for other in LEVELS if other not in path)
    console.print(f"[green]This path is complete.[/] Another one: {others}")
    return 0


def state_of(entry: dict[str, Any]) -> str:
    if entry["solved"]:
        return "[green]solved[/]"
    if entry["tries"]:
        return f"[yellow]{_many(entry['tries'], 'try', 'tries')}[/]"
    return "[dim]not tried[/]"


def predicted_points() -> tuple[int, int, int]:
    """Return (points, possible points, reports) over the guesses of scripts and notebooks in outputs/reports."""
    points = most = reports = 0
    for report in all_predictions()[0]:
        scores = [p.points for p in report if p.points is not None]
        points, most, reports = points + sum(scores), most + 3 * len(scores), reports + bool(scores)
    return points, most, reports


# ------------------------------------------------------------------ lab check


def check_notebook(console: Console, word: str) -> int:
    """Run a notebook from top to bottom in a fresh kernel, and print the results."""
    from exercises.publishing import notebook_runs  # slow to load

    path = find_notebook(word)
    try:
        notebook_runs.read_notebook(path)
    except LabError as error:
        again = f": `lab reset {path.stem}` writes a fresh one" * (path.parent == NOTEBOOKS / "exercises")
        raise LabError(f"{error}{again}") from None
    console.print(f"[dim]running {escape(short(path))} from top to bottom in a fresh kernel ...[/]")
    cells = notebook_runs.run_notebook(path, notebook_runs.CELL_SECONDS)
    bad = [cell for cell in cells if cell["outcome"] == "failed"]
    own = [cell for cell in bad if not waits(cell)]
    wrong = [cell for cell in bad if cell["error"] == "NotYet" and cell["boxes"]]
    waiting = len(bad) - len(own) - len(wrong)
    for cell in cells:
        for text in cell["boxes"] + [cell["printed"]] * bool(
            {"check", "engine"} & {*cell["tags"]} and cell["printed"]
        ):
            console.print(escape(text), soft_wrap=True)
    for cell in own[:1]:  # later cells mostly fail because of this one
        console.print(f"[red]Code cell {cell['number'] + 1} failed{cell['where']}:[/]")
        for line in [cell["line"]] if cell["line"] else cell["source"].splitlines()[:6]:
            console.print(f"    {escape(line)}", soft_wrap=True)
        console.print(escape(what_failed(cell, notebook_runs.CELL_SECONDS)), soft_wrap=True)
    if len(own) > 1:
        rest = f"{len(own) - 1} later cell{'s' * (len(own) > 2)}"
        console.print(f"[dim]{rest} failed too, often because of this one.[/]")
    ran, skipped = (sum(cell["outcome"] == kind for cell in cells) for kind in ("passed", "skipped"))
    counts = {
        f"{ran} of {len(cells)} code cells ran well": True,
        f"{_many(len(wrong), 'answer is', 'answers are')} not right yet": wrong,
        f"{_many(waiting, 'cell waits', 'cells wait')} for {'it' if wrong else 'your answer'}": waiting,
        f"{len(own)} failed": own,
        f"{skipped} skipped ({notebook_runs.NEEDS_GPU})": skipped,
    }
    text = " · ".join(text for text, told in counts.items() if told)
    console.print(f"[{'yellow' if bad else 'green'}]{escape(text)}[/]")
    return 1 if bad else 0


def _many(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def waits(cell: dict[str, Any]) -> bool:
    """Tell whether a cell failed only because the answer is missing or not right yet."""
    if cell["error"] == "NotImplementedError":
        return "your turn" in cell["message"]
    return cell["error"] in ("NotYet", "NotAttempted")


def what_failed(cell: dict[str, Any], seconds: int) -> str:
    message = re.sub(r"\(\d+\.py, (line \d+)\)", r"(\1)", " ".join(cell["message"].split()))
    if cell["error"] == "KernelDied":
        return "The cell ended the kernel, by os._exit or a crash. The cells after it could not run."
    if cell["error"] == "KeyboardInterrupt":
        return f"The cell was stopped after {seconds} s. Look for a loop that never ends."
    return f"{cell['error']}: {message}" if message else cell["error"]


# ------------------------------------------------------------------ lab hint, lab reset


def show_hint(console: Console, word: str) -> int:
    """Show the next hint of an exercise, as `hint` does in its notebook."""
    from exercises.grading import hint  # slow to load

    hint(the_one(word, all_names(), "exercise", "; `lab progress` lists them"))
    return 0


def reset_notebook(console: Console, word: str) -> int:
    """Write a fresh exercise notebook, and keep the old one beside it."""
    from exercises.publishing.build_notebooks import build_student, keep_old, text_of

    path = find_notebook(word, must_exist=False)
    if path.parent != NOTEBOOKS / "exercises" or path.stem not in all_names():
        raise LabError(
            f"only the notebooks in notebooks/exercises can be reset, and {short(path)} is not one"
        )
    text = text_of(build_student(source_of(path.stem)))
    if path.is_file():
        if path.read_text(encoding="utf-8", errors="replace") == text:
            console.print(f"{short(path)} is fresh already", soft_wrap=True)
            return 0
        console.print(f"your notebook is kept as {short(keep_old(path))}", soft_wrap=True)
    write_whole(path, text)
    console.print(f"{short(path)} is fresh again", soft_wrap=True)
    return 0


# ------------------------------------------------------------------ names


def find_notebook(word: str, must_exist: bool = True) -> Path:
    """Find a notebook by a path, its name (p1e1_pairs), its number (1.1 or p1e1), or the beginning of its name.

    Raises:
        LabError: no notebook fits, or several do.
    """
    path = Path(word)
    if path.suffix == ".ipynb" and path.is_file():
        return path.resolve()
    if path.suffix not in ("", ".ipynb") and not re.fullmatch(r"\d\.\d+[a-z]?", word):
        raise LabError(f"{word} is no notebook: its name must end in .ipynb")
    stem = path.stem if path.suffix == ".ipynb" else word
    here = {p.stem: p for p in NOTEBOOKS.glob("*.ipynb")}
    here |= {name: NOTEBOOKS / "exercises" / f"{name}.ipynb" for name in all_names()}
    found = here[the_one(stem, here, "notebook", "; `lab progress` lists the exercises")]
    if len(path.parts) > 1 and ROOT / path != found:
        raise LabError(f"there is no notebook {word}")
    if must_exist and not found.is_file():
        raise LabError(f"{short(found)} is missing: `lab reset {found.stem}` writes it")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """progress | next LEVEL | check NOTEBOOK | hint EXERCISE | reset NOTEBOOK; `lab` has the options."""
    command, *words = sys.argv[1:] if argv is None else argv
    does = {"progress": show_progress, "next": show_next, "check": check_notebook, "hint": show_hint}
    does["reset"] = reset_notebook
    return run(lambda: does[command](Page(highlight=False), *words))


if __name__ == "__main__":
    raise SystemExit(main())
