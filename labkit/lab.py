"""The frame of a lab script: its options, output, report and errors.

def story(lab: Lab) -> None:
    lab.say("What you will see ...")
    lab.predict(claim="waste", question="share of wasted slots", predicted=0.816, measured=waste)

def main(argv=None) -> int:
    return run_lab(story, __doc__, options=("model", "seed"), argv=argv)
"""

import argparse
import inspect
import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.progress import track
from rich.table import Table

from labkit.claims import SOURCE_OF, SOURCES
from labkit.options import build_parser
from labkit.paths import check_writable, outputs, short, write_whole
from labkit.predictions import Kind, Needs, Prediction, parse_guess, score_guess, show_expected, show_value
from labkit.reports import read_report, report_of, was_run_in_full
from labkit.terminal import Page, escape, run

T = TypeVar("T")


class Lab:
    """The object that a story works with: its options, and methods to show, predict, draw and record."""

    def __init__(self, script: Path, args: argparse.Namespace, console: Console) -> None:
        self.script = script
        self.args = args
        self.console = console
        self.predictions: list[Prediction] = []
        self.results: dict[str, Any] = {}
        self.figures: list[Path] = []
        self.keeps_report = True
        self._waited = 0.0  # seconds for the learner's guesses
        self._spaced = True  # whether the last line printed was empty or a heading
        self._named: set[str] = set()  # letters of the articles whose titles were printed

    # ------------------------------------------------------------------ options

    @property
    def quick(self) -> bool:
        return self.args.quick

    @property
    def seed(self) -> int:
        return self.args.seed

    @property
    def device(self) -> str:
        """ "cpu" or "cuda". Raises LabError if --device cuda is given and there is no GPU."""
        from labkit.machine import pick_device

        return pick_device(self.args.device)

    @property
    def where(self) -> str:
        """Dtype and machine for a figure's subtitle: "float32, AMD EPYC, 2 threads"."""
        import torch

        from labkit.machine import cpu_name

        if "device" in self.args and self.device == "cuda":
            return f"{self.args.dtype}, {torch.cuda.get_device_name()}"
        threads = torch.get_num_threads()
        return f"{self.args.dtype}, {cpu_name()}, {threads} thread{'' if threads == 1 else 's'}"

    # ------------------------------------------------------------------ showing

    def title(self, text: str) -> None:
        """Print a heading between parts of the story."""
        self.console.print()
        self.console.rule(f"[bold]{escape(text)}", align="left", style="dim")
        self._spaced = True

    def say(self, text: str) -> None:
        """Print a paragraph. Its lines are joined; an empty line starts a new paragraph."""
        for paragraph in inspect.cleandoc(text).split("\n\n"):
            if not self._spaced:
                self.console.print()
            self._spaced = False
            self.console.print(escape(" ".join(paragraph.split())), highlight=False)

    def show(self, text: str) -> None:
        """Print text unchanged: a matrix, a drawing, a piece of output."""
        if not self._spaced:
            self.console.print()
        self._indented(escape(text), 2)
        self._spaced = False

    def table(
        self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], note: str = ""
    ) -> None:
        """Print a table. Numbers are formatted and right-aligned."""
        rows = [list(row) for row in rows]
        table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, expand=False)
        for i, name in enumerate(columns):
            numeric = bool(rows) and all(isinstance(r[i], (int, float, type(None))) for r in rows)
            table.add_column(escape(name), justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*(escape(show_value(cell)) for cell in row))
        self.console.print()
        self.console.print(f"[bold]{escape(title)}[/]", highlight=False)
        self._indented(table, 1)
        self._spaced = True  # the table ends with an empty line
        self._note(note, 1)

    def _indented(self, what: Any, by: int, style: str | None = None) -> None:
        self.console.print(Padding(what, (0, 0, 0, by)), style=style, highlight=False)

    def _note(self, text: str, by: int) -> None:
        if text:
            self._indented(escape(" ".join(text.split())), by, "dim")

    def progress(self, items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
        """Iterate over items with a progress bar. Use it for loops of more than two seconds."""
        return iter(track(items, f"  {escape(label)}", total, console=self.console, transient=True))

    # ------------------------------------------------------------------ predicting

    def predict(
        self,
        claim: str,
        question: str,
        predicted: Any,
        measured: Any,
        *,
        source_says: Any = None,
        unit: str = "",
        tolerance: float = 0.0,
        kind: Kind = "structure",
        note: str = "",
        between: bool = False,
        choices: Sequence[str] = (),
    ) -> Prediction:
        """Put a prediction beside its measurement, and keep both. See `Prediction` for the fields.

        Args:
            choices: the allowed guesses; empty: any guess.

        With --predict it asks the learner first, so call it before you show the figure elsewhere.
        """
        p = Prediction(
            claim, question, predicted, measured, source_says, unit, tolerance, kind, note, between=between
        )
        if self.args.predict and not many_or_ids(p):
            self._ask(p, choices)
        self._keep(p)
        return p

    def cannot_measure(self, claim: str, question: str, needs: Needs, remedy: str) -> None:
        """Record that a claim cannot be checked here."""
        self._keep(Prediction(claim, question, needs=needs, note=remedy))

    def _ask(self, p: Prediction, choices: Sequence[str]) -> None:
        form = "yes or no" if isinstance(p.measured, bool) else ""
        if isinstance(p.measured, (list, tuple)):
            example = ("yes" if isinstance(v, bool) else str(i) for i, v in enumerate(p.measured, start=1))
            form = f"{len(p.measured)} values, such as " + " / ".join(example)
        unit = "".join(f" ({text})" for text in (p.unit, form) if text)
        self.console.print(
            f"\n[bold]Your guess:[/] {escape(p.question)}{escape(unit)}  [dim](Enter to skip)[/]"
        )
        while True:
            asked = time.perf_counter()
            try:
                text = input("  > ")
            except EOFError:
                return
            self._waited += time.perf_counter() - asked
            if not text.strip():
                return
            try:
                p.guess = parse_guess(text, p.measured, p.unit)
            except ValueError as error:
                self.console.print(f"  {escape(str(error))}, try again", style="yellow")
                continue
            if choices and p.guess.lower() not in choices:
                self.console.print(
                    f"  {escape(p.guess)} is none of {', '.join(choices)}, try again", style="yellow"
                )
                p.guess = None
                continue
            p.points = score_guess(p.guess, p.measured, p.unit)
            return

    def _keep(self, p: Prediction) -> None:
        self.predictions.append(p)
        if p.needs:
            mark, values = "[yellow]○[/]", f"[yellow]{p.verdict}[/]"
        else:
            failed = "[red]✗[/]" if p.kind == "structure" else "[yellow]≠[/]"
            mark = "[green]✓[/]" if p.holds else failed
            values = f"predicted {escape(show_expected(p.predicted, p.unit, p.between))}"
            values += f" · measured [bold]{escape(show_value(p.measured, p.unit))}[/]"
            if p.holds and p.tolerance and not p.between and p.measured != p.predicted:
                values += f" (within {100 * p.tolerance:.3g}%)"
            if p.source_says is not None:
                values += f" · the source says {escape(show_expected(p.source_says, p.unit, p.between))}"
            if p.guess is not None:
                values += f" · your guess {escape(show_value(p.guess))}, {p.points} of 3 points"
        self.console.print()
        self.console.print(f" {mark} {escape(p.question)}  [dim]\\[{escape(p.claim)}][/]", highlight=False)
        self._indented(values, 3)
        self._note(p.note, 3)
        self._name_the_source(p)
        self._spaced = False

    def _name_the_source(self, p: Prediction) -> None:
        """Print the title of an article at its first figure."""
        if p.source_says is None:
            return
        for letter in SOURCE_OF.get(p.claim, "").split():
            if letter not in self._named:
                self._named.add(letter)
                self._note(f"The source, an article ({letter} in `lab claims`): {SOURCES[letter]}.", 3)

    # ------------------------------------------------------------------ recording

    def record(self, **results: Any) -> None:
        """Keep figures for the JSON report."""
        self.results.update(results)

    def save(self, **results: Any) -> None:
        """Record figures, and write the current report of --json, so that an interrupted run keeps them."""
        self.record(**results)
        for file in self._json:
            write_whole(file, json.dumps(self.report(0.0), indent=1))

    def rng(self) -> Any:
        """Return numpy's random generator with the seed of --seed."""
        import numpy as np

        return np.random.default_rng(self.seed)

    def figure(self, fig: Any, name: str) -> Path:
        """Save a matplotlib figure as `name`.png in the figures folder, and print its path."""
        import matplotlib.pyplot as plt

        path = self._figures_folder / f"{name}.png"
        drawn = io.BytesIO()
        fig.savefig(drawn)
        write_whole(path, drawn.getvalue())
        plt.close(fig)
        self.figures.append(path)
        self.console.print(f"\n   figure: [bold]{escape(short(path))}[/]", highlight=False)
        self._spaced = False
        return path

    # ------------------------------------------------------------------ ending

    @property
    def _figures_folder(self) -> Path:
        return Path(self.args.figures) if self.args.figures else outputs()

    @property
    def _json(self) -> list[Path]:
        """The file of --json, if it was given."""
        return [Path(self.args.json)] if self.args.json else []

    def check_outputs(self) -> None:
        """Raise LabError if the reports or figures cannot be written."""
        for target in (report_of(self.script), self._figures_folder / "figure.png", *self._json):
            check_writable(target)

    def report(self, seconds: float) -> dict[str, Any]:
        from labkit.machine import environment

        return {
            "script": self.script.name,
            "phase": self.script.parent.name,
            "arguments": {
                k: v if isinstance(v, (int, float, bool, type(None))) else str(v)
                for k, v in vars(self.args).items()
            },
            "environment": environment(),
            "seconds": round(seconds, 1),
            "predictions": [p.to_json() for p in self.predictions],
            "results": self.results,
            "figures": [short(f) for f in self.figures],
        }

    def close(self, seconds: float) -> int:
        """Write the report, print the sum, return the exit code: 1 if a structural prediction failed."""
        report = self.report(seconds)
        kept = report_of(self.script)
        _carry_guesses(kept, report["predictions"])
        report["in_full"] = not report["arguments"].get("quick") or was_run_in_full(self.script)
        for target in [kept] * self.keeps_report + self._json:
            write_whole(target, json.dumps(report, indent=1))

        checked = [p for p in self.predictions if not p.needs]
        failed = [p for p in checked if p.kind == "structure" and not p.holds]
        guesses = [p for p in self.predictions if p.points is not None]
        held = sum(bool(p.holds) for p in checked)
        line = f"{held} of {len(checked)} predictions held" if checked else "done"
        # Guesses of earlier runs are kept. The score is printed with --predict, or if all questions have a guess.
        if guesses and (self.args.predict or len(guesses) == len(self.predictions)):
            line += f" · you scored {sum(p.points for p in guesses)} of {3 * len(guesses)} points"
        self.console.print()
        self.console.print(f"[dim]{self.script.name}: {line} · {seconds:.1f} s[/]", highlight=False)
        if failed:
            names = ", ".join(p.claim for p in failed)
            self.console.print(
                f"[red]These predictions must hold on every machine, and failed: {escape(names)}[/]",
                highlight=False,
            )
        return 1 if failed else 0


def many_or_ids(p: Prediction) -> bool:
    """Tell whether reasoning cannot give the answer: ids, or more than three values at once."""
    return p.unit == "ids" or (isinstance(p.measured, (list, tuple)) and len(p.measured) > 3)


def _carry_guesses(report: Path, predictions: list[dict[str, Any]]) -> None:
    """Keep the first guess at each question: take it over from the earlier report."""
    earlier: dict[tuple[str, str], list[Prediction]] = {}
    with suppress(ValueError):  # none yet, or damaged
        for p in read_report(report).predictions:
            earlier.setdefault((p.claim, p.question), []).append(p)
    for p in predictions:
        same = earlier.get((p["claim"], p["question"]))
        old = same.pop(0) if same else None
        if old and old.points is not None:
            p["guess"], p["points"] = old.guess, old.points


def run_lab(
    story: Callable[[Lab], None],
    doc: str | None,
    options: Sequence[str] = (),
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
    argv: Sequence[str] | None = None,
) -> int:
    """Run a story as a script.

    Returns:
        0: success. 1: a structural prediction failed. Other codes: see `labkit.terminal.run`.
    """

    def tell() -> int:
        script = Path(inspect.getfile(story)).resolve()
        parser = build_parser(script, doc or "", options)
        if add_arguments:
            add_arguments(parser)
        lab = Lab(script, parser.parse_args(argv), Page())
        lab.check_outputs()
        if "seed" in options:
            import torch

            torch.manual_seed(lab.seed)
        began = time.perf_counter()
        story(lab)
        return lab.close(time.perf_counter() - began - lab._waited)

    return run(tell)
