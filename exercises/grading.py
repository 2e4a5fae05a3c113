"""The functions of a notebook, `check` and `hint`, and the errors of graders.

    check("p1e1_pairs", count_pairs)    # judges the answer, shows one box, raises if it is not correct
    hint("p1e1_pairs")                  # the next hint: a nudge, the formula, pseudo-code, the solution

General diagnoses, for every exercise: "not-attempted", "returns-nothing", "wrong-type", "wrong-shape",
"wrong-result" (the values differ, and no known mistake gives them), "raises", "wrong-signature", "not-a-function",
"unusable-result", "endless", "ends-python", "crashes-python", "borrowed" (the answer is the course's own part). `lab grade`
also says "too-much-data" and "transcript-ends".
"""

from typing import Any

from exercises.capstone import parts
from exercises.judging import boxes, progress
from exercises.judging.comparing import show
from exercises.judging.judge import Exercise
from exercises.judging.sandbox import judge_safely
from exercises.judging.verdict import NotYet, Stopped, Verdict
from labkit.errors import LabError

__all__ = ["Exercise", "NotYet", "Verdict", "check", "hint"]


def check(name: str = "", *answers: Any) -> None:
    """Judge the answers to an exercise, show the result in one box, and record the progress; a right answer goes into `my_engine/`.

    Raises:
        NotAttempted: an answer is still the stub.
        NotYet: it is not right yet.
        LabError: there is no such exercise, or the answers are not those that it asks for.
    """
    exercise = _find(name)
    asks = exercise.asks
    if len(answers) != len(asks):
        raise LabError(
            f"this exercise takes {len(asks)} answer{'s' * (len(asks) > 1)}, not {len(answers)}: "
            f'check("{exercise.name}", {", ".join(asks)})'
        )
    try:
        verdict = judge_safely(exercise, answers)
    except KeyboardInterrupt:
        raise Stopped from None
    tries = progress.note_check(exercise.name, verdict)
    boxes.display(boxes.verdict_box(exercise, verdict, tries))
    if verdict.state != "correct":
        raise verdict.to_error()
    if not progress.is_demonstration() and (told := parts.put(exercise.name, answers)):
        print(told)


def hint(name: str = "", rung: int | None = None) -> None:
    """Show a hint of an exercise by its number (1 to 4; the fourth is the solution).

    Without a number: the next one, if a check has failed since the last one was shown; else that one again. So a
    cell with a hint may stay in the notebook.

    Raises:
        LabError: there is no such exercise, or no such hint.
    """
    from exercises.judging.sources import solution_of

    exercise = _find(name, "hint")
    rungs = len(exercise.hints) + 1
    if rung is None:
        rung = progress.next_rung(exercise.name, rungs)
    elif type(rung) is not int or not 1 <= rung <= rungs:
        raise LabError(f"there are {rungs} hints, 1 to {rungs}, not {show(rung, 40)}")
    progress.note_hint(exercise.name, rung)
    solution = solution_of(exercise.name) or "This edition holds no solutions: ask your teacher."
    text = solution if rung == rungs else exercise.hints[rung - 1]
    boxes.display(boxes.hint_box(exercise, rung, text))


def _find(name: Any, called: str = "check") -> Exercise:
    from exercises.judging.registry import find

    if isinstance(name, str) and name:
        return find(name)
    raise LabError(
        f'the name of the exercise comes first, in quotes: {called}("NAME"). It is its notebook\'s, without .ipynb'
    )
