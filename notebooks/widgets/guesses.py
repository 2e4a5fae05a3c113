"""Guess first, then look: the companion notebooks' side of `--predict`, with the same points."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.paths import outputs, write_whole
from labkit.predictions import Prediction, agrees, parse_guess, score_guess, show_value
from notebooks.widgets.questions import QUESTIONS, Question

BOX = "border-left: 4px solid {}; padding: 6px 12px; margin: 6px 0"


class WrongGuess(LabError, ValueError):
    """A guess of the wrong kind. Jupyter shows its one line, and no traceback."""


@dataclass(repr=False)
class Revealed(Prediction):
    """A question, its answer, and what a learner guessed; `note` says why."""

    def _repr_html_(self) -> str:
        answer = f"<b>{html.escape(show_value(self.measured, self.unit))}</b>"
        why = f"<br>{html.escape(self.note)}" if self.note else ""
        question = html.escape(self.question)
        if self.points is None:  # folded away: a reader who wants to guess is not told
            return (
                f'<div style="{BOX.format("#9aa5b1")}">{question}<br><i>No guess yet. Put yours in place of the '
                f"dots, and run the cell again.</i>"
                f"<details><summary>Show the answer without a guess</summary>{answer}{why}</details></div>"
            )
        colour = ("#c8453b", "#e07b39", "#e07b39", "#3c9d6b")[self.points]
        guess = html.escape(show_value(self.guess, self.unit))
        return (
            f'<div style="{BOX.format(colour)}">{question}<br>measured {answer} · your guess {guess} · '
            f"{self.points} of 3 points{why}</div>"
        )

    def __repr__(self) -> str:
        if self.points is None:
            return f"{self.question}: no guess yet"
        return (
            f"{self.question}: measured {show_value(self.measured, self.unit)}, "
            f"your guess {show_value(self.guess, self.unit)}, {self.points} of 3 points"
        )


@dataclass
class Guesses:
    """Keeps the score of a notebook.

    Args:
        notebook: its name, such as "phase2_attention_kvcache": guesses that were scored are then written to
            `outputs/reports/<name>/notebook.json`, in the form of a script's report, where `lab progress` finds
            them. "": nothing is written.

    >>> guesses = Guesses()
    >>> guesses.reveal("tokens of a cat", 7, measured=6).points
    2
    >>> guesses.score()
    1 of 1 questions guessed, 2 of 3 points
    """

    notebook: str = ""
    revealed: dict[str, Revealed] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return outputs() / "reports" / self.notebook / "notebook.json"

    def reveal(self, question: str, guess: Any, measured: Any, **facts: Any) -> Revealed:
        """Score a guess and show what came out. `...` or None: not guessed yet, and the answer stays folded.

        Running a cell again replaces its guess.

        Args:
            question: its name in `questions.py`, or the question itself.
            facts: figures that its text asks for.

        Raises:
            WrongGuess: a guess of the wrong kind, such as a word in place of a number.
        """
        text, why, unit = QUESTIONS.get(self.notebook, {}).get(question, Question(question, ""))
        question, why = text.format(**facts), why.format(**facts)
        shown = Revealed("notebook", question, measured, measured, unit=unit, note=why)
        if guess is not ... and guess is not None:
            shown.guess = _same_kind(guess, measured)
            shown.points = 3 if agrees(measured, shown.guess, 0) else score_guess(shown.guess, measured, unit)
        self.revealed[question] = shown
        if self.notebook and shown.points is not None:
            self._note(shown)
        return shown

    def _note(self, shown: Revealed) -> None:
        """Add a scored guess to those of earlier sessions. What cannot be written costs the note, not the lesson."""
        try:
            kept = self._noted() | {shown.question: shown.to_json()}
            report = {"script": "notebook", "phase": self.notebook, "predictions": list(kept.values())}
            write_whole(self.file, json.dumps(report, indent=1))
        except OSError as error:
            print(f"Your score cannot be noted in {self.file} ({error.strerror}).")

    def _noted(self) -> dict[str, dict[str, Any]]:
        """The predictions in the file, by question; none if it is not there or broken."""
        try:
            report = json.loads(self.file.read_text(encoding="utf-8"))
            return {p["question"]: p for p in report["predictions"]}
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return {}

    def score(self) -> Guesses:
        """As the last line of a cell: the score so far."""
        return self

    def __repr__(self) -> str:
        points = [r.points for r in self.revealed.values() if r.points is not None]
        return f"{len(points)} of {len(self.revealed)} questions guessed, {sum(points)} of {3 * len(points)} points"

    def _repr_html_(self) -> str:
        return f'<div style="{BOX.format("#2f6fb0")}">{self!r}</div>'


def _same_kind(guess: Any, measured: Any) -> Any:
    """A guess as the kind of thing that was measured; "7", "yes" and [1, 2] may be given as they are."""
    if isinstance(guess, (list, tuple)) and not isinstance(measured, (list, tuple)):
        raise WrongGuess(f"give one value; {guess!r} is a {type(guess).__name__}")
    try:
        return parse_guess(
            " ".join(map(str, guess)) if isinstance(guess, (list, tuple)) else str(guess), measured
        )
    except ValueError as error:
        raise WrongGuess(f"your guess: {error}") from None
