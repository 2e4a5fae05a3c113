"""A prediction beside its measurement, the verdict on a source's claim, and the score of a guess."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

Kind = Literal["structure", "timing"]
Needs = Literal["GPU", "download", "vLLM"]
Verdict = Literal["reproduced", "corrected", "differs here", "needs a GPU", "needs a download", "needs vLLM"]
Figure = bool | Annotated[int, Field(ge=-(2**63), lt=2**63)] | float | str | None
Value = Figure | list[Figure | list[Figure]]
"""A predicted, measured or guessed value, such as 0.5, "float32" or [1, 768]; None: no value."""
NEEDS: dict[Needs, Verdict] = {"GPU": "needs a GPU", "download": "needs a download", "vLLM": "needs vLLM"}


@dataclass
class Prediction:
    """A prediction and its measurement.

    Attributes:
        claim: id in the list of claims (`labkit/claims.toml`), or a short name for a prediction of the course.
        question: the predicted quantity, in words that a learner can answer.
        predicted: the value from theory, before the script measures. None if `needs` says why it did not measure.
        between: `predicted` is [lowest, highest], for times, which differ between machines. `source_says` may be such a range, too.
        measured: the measured value.
        source_says: the source article's figure, where it differs from `predicted`.
        unit: "" for counts and ratios; "ids" for token ids.
        tolerance: largest accepted |measured - predicted| / |predicted|; 0 asks for equality.
        kind: "structure" (counts, shapes, ids: must hold on every machine) or "timing" (reported only).
        note: a sentence that explains the figure.
        needs: "GPU", "download" or "vLLM" when this machine could not measure it.
        guess, points: the learner's own guess and its score, with --predict.
    """

    claim: str
    question: str
    predicted: Value = None
    measured: Value = None
    source_says: Value = None
    unit: str = ""
    tolerance: float = 0.0
    kind: Kind = "structure"
    note: str = ""
    needs: Needs | None = None
    between: bool = False
    guess: Value = None
    points: Annotated[int, Field(ge=0, le=3)] | None = None

    @property
    def holds(self) -> bool | None:
        """True if the measurement agrees with the prediction; None without a measurement."""
        return None if self.needs else self._meets(self.predicted, 0.0 if self.between else self.tolerance)

    def _meets(self, expected: Value, tolerance: float) -> bool:
        match expected, self.measured:
            case ([int() | float() as lowest, int() | float() as highest], int() | float()) if self.between:
                return lowest * (1 - tolerance) <= self.measured <= highest * (1 + tolerance)
        return agrees(expected, self.measured, tolerance)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the source's figure.

        A timing corrects it only if the course's own prediction, which differs from the source's, holds. If that fails as
        well, the machine may have been busy: the verdict is "differs here".
        """
        if self.needs:
            return NEEDS[self.needs]
        expected = self.predicted if self.source_says is None else self.source_says
        if self._meets(expected, self.tolerance):
            return "reproduced"
        return "differs here" if self.kind == "timing" and not self.holds else "corrected"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"holds": self.holds, "verdict": self.verdict}


def agrees(expected: Any, measured: Any, tolerance: float) -> bool:
    """Tell whether two values are equal, numbers within a relative tolerance; lists are compared item by item."""
    if isinstance(expected, (list, tuple)) and isinstance(measured, (list, tuple)):
        return len(expected) == len(measured) and all(
            agrees(e, m, tolerance) for e, m in zip(expected, measured, strict=True)
        )
    if isinstance(expected, (int, float)) and isinstance(measured, (int, float)):
        return abs(measured - expected) <= tolerance * abs(expected)
    return expected == measured


NUMBER = re.compile(r"(-?[\d,]*\.?\d+(?:e[-+]?\d+)?) *([^\d\s]*)\D*", re.IGNORECASE)
UNITS = (  # of one kind: a guess may be given in another than was asked for
    {"k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "billion": 1e9},
    {"b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30},
    {"s": 1, "ms": 1e-3, "us": 1e-6, "µs": 1e-6},
)


def parse_guess(text: str, measured: Any, unit: str = "") -> Any:
    """Read what a learner typed as the kind of value that was measured.

    A number may have a factor ("3k", "2 million") or a unit ("30 tokens"); "2 GB" is converted to the `unit` that is asked for.

    Raises:
        ValueError: it is not a number where one is needed.
    """
    text = text.strip()
    if isinstance(measured, bool):
        words = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
        if text.lower() not in words:
            raise ValueError("answer yes or no")
        return words[text.lower()]
    if isinstance(measured, (int, float)):
        found = NUMBER.fullmatch(text.replace("_", ""))
        guess = float(found[1].replace(",", "")) if found else math.nan
        if not math.isfinite(guess):
            raise ValueError(f"{text!r} is not a number, such as 30, 3k or 2.5 GB")
        given = found[2].lower()  # "": the unit that is asked for
        guess *= next((kind[given] / kind.get(unit.lower(), 1) for kind in UNITS if given in kind), 1)
        return int(guess) if guess.is_integer() else guess
    if isinstance(measured, (list, tuple)):
        parts = text.strip("[]()").replace(",", " ").replace("/", " ").split()
        if len(parts) != len(measured):
            raise ValueError(f"{len(measured)} values are asked for, {len(parts)} given")
        return [parse_guess(part, m, unit) for part, m in zip(parts, measured, strict=True)]
    return text.strip("'\"")


def score_guess(guess: Any, measured: Any, unit: str = "") -> int:
    """0 to 3 points.

    A quantity: 3 within 10%, 2 within a factor of 1.5, 1 within a factor of 4; for a list the points of its items are
    averaged. An id (`unit` is "ids"), a yes or no, and words: right (3) or wrong (0).
    """
    if unit == "ids":
        return 3 if guess == measured else 0
    if isinstance(measured, (list, tuple)):
        points = [score_guess(g, m) for g, m in zip(guess, measured, strict=True)]
        return round(sum(points) / len(points)) if points else 0
    if isinstance(measured, bool) or not isinstance(measured, (int, float)):
        return 3 if _words(guess) == _words(measured) else 0
    if guess == measured:
        return 3
    if guess * measured <= 0:  # one is zero, or the signs differ
        return 0
    factor = math.exp(abs(math.log(guess / measured)))
    return 3 if factor <= 1.1 else 2 if factor <= 1.5 else 1 if factor <= 4 else 0


def _words(text: Any) -> list[str]:
    """Split a text into words without punctuation. Without a word, return the text."""
    return re.findall(r"\w+", str(text).casefold()) or [str(text).strip("' ")]


def show_expected(value: Any, unit: str, between: bool) -> str:
    """Format a prediction: as `show_value`, and a range as "2 to 4 x"."""
    if not between or not isinstance(value, (list, tuple)):
        return show_value(value, unit)
    return " to ".join([*map(show_value, value[:-1]), show_value(value[-1], unit)])


def show_value(value: Any, unit: str = "") -> str:
    """Format a value: 1234567 -> "1,234,567", 0.8163 -> "0.816", True -> "yes"."""
    if value is None:
        text = "-"
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, int):
        text = f"{value:,}"
    elif isinstance(value, float):
        if value == 0:
            text = "0"
        elif abs(value) >= 100:
            text = f"{value:,.0f}"
        elif abs(value) >= 10:
            text = f"{value:.1f}"
        elif abs(value) >= 0.01:
            text = f"{value:.3g}"
        else:
            text = f"{value:.1e}"
    elif isinstance(value, (list, tuple)):
        ids = all(type(v) is int and v < 100_000 for v in value)  # token ids and shapes: no thousands commas
        text = " / ".join(str(v) if ids else show_value(v) for v in value)
    else:
        text = str(value)
    return f"{text} {unit}" if unit not in ("", "ids") and value is not None else text
