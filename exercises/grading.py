"""What a notebook and a grader use: `check`, `hint`, and the helpers that graders are written with.

    check("p1e1_pairs", count_pairs)    # judges the answer, shows one box, raises if it is not correct
    hint("p1e1_pairs")                  # the next hint: a nudge, the formula, pseudo-code, the solution

A grader is a function that gets the answers:

    def grade(count_pairs):
        out = guard(count_pairs, [1, 2, 1, 2])
        diagnose(out, {"overlap-missed": ({(1, 2): 1}, "A token belongs to two pairs ...")}, tried="...")
        expect_equal(out, {(1, 2): 2, (2, 1): 1}, tried="count_pairs([1, 2, 1, 2])")

Diagnoses that come from here, for every exercise: "not-attempted", "returns-nothing", "wrong-type", "wrong-shape",
"wrong-result" (the values differ, and no known mistake gives them), "raises", "wrong-signature", "not-a-function",
"unusable-result", "endless", "ends-python", "crashes-python".
"""

from __future__ import annotations

import sys
from typing import Any

from exercises import boxes, progress
from exercises.answers import guard
from exercises.comparing import diagnose, difference, expect_equal, same, show
from exercises.sandbox import judge_safely
from exercises.verdict import NOTHING, Exercise, NotAttempted, NotYet, Stopped, Verdict

__all__ = [
    "NOTHING",
    "Exercise",
    "NotAttempted",
    "NotYet",
    "Verdict",
    "check",
    "diagnose",
    "difference",
    "expect_equal",
    "guard",
    "hint",
    "same",
    "show",
]


def check(name: str, *answers: Any) -> None:
    """Judge the answers to an exercise, show what came out in one box, and note the progress.

    Raises:
        NotAttempted: an answer is still the stub.
        NotYet: it is not right yet.
        ValueError: there is no such exercise, or the number of answers is not what it asks for.
    """
    from exercises.registry import find

    exercise = find(name)
    if len(answers) != len(exercise.asks):
        raise ValueError(
            f"this exercise takes {len(exercise.asks)}: check({name!r}, {', '.join(exercise.asks)})"
        )
    try:
        verdict = judge_safely(exercise, answers)
    except KeyboardInterrupt:
        raise Stopped from None
    tries = progress.note_check(name, verdict)
    boxes.display(boxes.verdict_box(exercise, verdict, tries))
    if verdict.state != "correct":
        _quiet_traceback()
        raise verdict.to_error()


def hint(name: str, rung: int | None = None) -> None:
    """Show the next hint of an exercise, or a given one (1 to 4). The fourth is the solution."""
    from exercises.registry import find
    from exercises.sources import solution_of

    exercise = find(name)
    rungs = len(exercise.hints) + 1
    if rung is None:
        rung = min(progress.rung(name) + 1, rungs)
    elif rung not in range(1, rungs + 1):
        raise ValueError(f"there are {rungs} hints, 1 to {rungs}, and {rung} was asked for")
    progress.note_hint(name, rung)
    text = solution_of(name) if rung == rungs else exercise.hints[rung - 1]
    boxes.display(boxes.hint_box(exercise, rung, text))


def _quiet_traceback() -> None:
    """In a plain script the box has said it all: leave out the traceback of NotYet."""
    if sys.excepthook is not sys.__excepthook__:
        return

    def hook(kind: type[BaseException], error: BaseException, tb: Any) -> None:
        if not isinstance(error, NotYet):
            sys.__excepthook__(kind, error, tb)

    sys.excepthook = hook
