"""What can come out of grading an answer, and the texts that say it."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from exercises.judging.sources import source_of

State = Literal["correct", "not yet", "not attempted"]
NOTHING: Any = type("Nothing", (), {"__repr__": lambda self: "(nothing)", "__bool__": lambda self: False})()
"""Stands for "no value given", since None is a value that an answer may return."""


class NotYet(Exception):
    """The answer is not right yet. It carries a diagnosis, so that a mistake is called by its name.

    Args:
        diagnosis: an id in kebab-case, such as "mask-off-by-one".
        says: one or two sentences: what is wrong and where to look; never the solution.
        tried, got, expected: what was called, what came out, what should have. A text is shown as it is,
            anything else as its repr.
    """

    state: State = "not yet"

    def __init__(
        self,
        diagnosis: str,
        says: str = "",
        tried: Any = NOTHING,
        got: Any = NOTHING,
        expected: Any = NOTHING,
    ) -> None:
        super().__init__(f"{diagnosis}: {says}")
        self.diagnosis, self.says = diagnosis, says
        self.tried, self.got, self.expected = tried, got, expected

    def _render_traceback_(self, *_: Any) -> list[str]:
        """What Jupyter shows in place of a traceback: one line, since the box above it says the rest."""
        return [f"{self.state}: {self.diagnosis}" if self.state == "not yet" else self.state]


def texts_of(name: str) -> dict[str, str]:
    """What exercises/phaseN/eM_name.txt says to a learner, by its headings: `# hints`, `# diagnoses`."""
    text = source_of(name).with_suffix(".txt").read_text(encoding="utf-8")
    _, *found = re.split(r"^# (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(found[::2], found[1::2]))


class Diagnoses(dict[str, str]):
    """What to say of each mistake: diagnosis -> text. `raise SAYS.no("double-free", tried, got, expected)`.

    A text may have names in braces, which `words` fill in. Where a diagnosis has several texts, a word stands behind
    it: "double-free (of two)".
    """

    def no(
        self, diagnosis: str, tried: Any = NOTHING, got: Any = NOTHING, expected: Any = NOTHING, **words: Any
    ) -> NotYet:
        says = self[diagnosis].format(**words) if words else self[diagnosis]
        return NotYet(diagnosis.partition(" ")[0], says, tried, got, expected)


class NotAttempted(NotYet):
    """The answer is still the stub."""

    state: State = "not attempted"

    def __init__(self, says: str = "") -> None:
        super().__init__("not-attempted", says)


class Stopped(KeyboardInterrupt):
    """The learner interrupted a check."""

    def _render_traceback_(self, *_: Any) -> list[str]:
        return ["You stopped the check. Nothing of it runs any more."]


@dataclass(frozen=True)
class Verdict:
    """What came out of grading, in texts: it crosses from one process to another, and no object of the answer does."""

    state: State
    diagnosis: str = ""
    says: str = ""
    tried: str = ""
    got: str = ""
    expected: str = ""

    def to_error(self) -> NotYet:
        """The exception that `check` raises."""
        if self.state == "not attempted":
            return NotAttempted(self.says)
        return NotYet(self.diagnosis, self.says, self.tried, self.got, self.expected)
