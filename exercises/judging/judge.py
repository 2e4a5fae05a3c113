"""Judging an answer by several cases at once, so that a mistake is named only if it explains all of them.

Two mistakes often give the same wrong result for one input. So a grader tries all its cases first. A known mistake
is named if it would give the learner's result in every case, right ones included; failing that, if it explains the
first case that went wrong and more than half of all that did.
"""

from __future__ import annotations

import copy
import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from exercises.grading import NotYet, expect_equal, guard
from exercises.grading import show as as_text
from exercises.judging.comparing import difference, same

# diagnosis -> (what the mistake would give, what to say). A tuple of functions: several ways to make the same mistake.
Mistakes = Mapping[str, tuple[Callable[..., Any] | tuple[Callable[..., Any], ...], str]]


class Raised:
    """What came out was an exception."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def judge(
    answer: Callable[..., Any],
    cases: Sequence[tuple],
    reference: Callable[..., Any],
    mistakes: Mistakes,
    *,
    show: Callable[..., str],
    tolerance: float = 1e-4,
    present: Callable[[Any, Any], tuple[Any, Any]] = lambda got, want: (got, want),
    keeps_input: bool = True,
) -> None:
    """Raise NotYet unless `answer` agrees with `reference` in all cases.

    Args:
        cases: the arguments of each call. Answer, reference and mistakes get copies of their own.
        reference, mistakes: called with the same arguments.
        show: the call as the learner would write it, for the box: `show(*args)`.
        present: (result, right result) as the box shows them, shorter or in lines. Called only with what has the right
            type and shape; if it fails the two are shown whole.
        tolerance: largest difference of two numbers, relative to the larger one if that is above 1.
        keeps_input: whether an answer that changes its arguments is wrong, though all its results are right.
    """
    given = [copy.deepcopy(args) for args in cases]  # not in one go: cases may share a tensor
    outcomes = [
        _outcome(lambda *a: guard(answer, *a, tried=show(*a)), args, own) for args, own in zip(cases, given)
    ]
    expected = [reference(*copy.deepcopy(args)) for args in cases]
    wrong = [i for i, (got, want) in enumerate(zip(outcomes, expected)) if not _same(got, want, tolerance)]
    if not wrong:
        if keeps_input:
            for args, own in zip(cases, given):
                expect_unchanged(answer, args, own, show(*args))
        return
    first = wrong[0]
    got, want, tried = outcomes[first], expected[first], show(*cases[first])
    if not isinstance(got, Raised):
        found = difference(got, want, tolerance)
        if found and found[0] in ("returns-nothing", "wrong-type"):  # no mistake in what is computed
            expect_equal(got, want, tried=tried, tolerance=tolerance)
    best = best_mistake(
        mistakes,
        lambda way: [_same(_outcome(way, args), out, tolerance) for args, out in zip(cases, outcomes)],
        wrong,
    )
    if isinstance(got, Raised):
        raise NotYet(*best, tried, str(got.error), want) if best is not None else got.error
    shown = _presented(present, got, want, tolerance)
    if best is not None:
        raise NotYet(*best, tried, *shown)
    try:
        expect_equal(got, want, tried=tried, tolerance=tolerance)
    except NotYet as no:
        no.got, no.expected = shown
        raise


def best_mistake(
    mistakes: Mistakes, explained_by: Callable[[Callable[..., Any]], list[bool]], wrong: Sequence[int]
) -> tuple[str, str] | None:
    """(diagnosis, what to say) of the mistake that explains most, None if none explains enough.

    Args:
        explained_by: which cases a way to make a mistake explains, right ones included.
        wrong: the numbers of the cases that went wrong, the first one first.
    """
    best, most = None, len(wrong) / 2
    for diagnosis, (ways, says) in mistakes.items():
        for way in ways if isinstance(ways, tuple) else (ways,):
            explained = explained_by(way)
            how_many = len(explained) + 1 if all(explained) else sum(explained[i] for i in wrong)
            if explained[wrong[0]] and how_many > most:
                best, most = (diagnosis, says), how_many
    return best


def expect_unchanged(
    answer: Callable[..., Any], before: Sequence[Any], after: Sequence[Any], tried: str
) -> None:
    """Raise NotYet if the arguments after a call are not what they were before it."""
    for place, (was, now) in enumerate(zip(before, after)):
        if not unchanged(was, now):
            says = f"Your answer changed what it was given ({_name_of_argument(answer, place)}). The caller still needs it: work on a copy."
            raise NotYet(
                "changes-its-input",
                says,
                f"{tried}, then a look at what was given",
                as_text(now),
                as_text(was),
            )


def call_and_expect_unchanged(answer: Callable[..., Any], args: tuple, tried: str) -> None:
    """For graders that judge results in their own way: one more call, with copies."""
    own = copy.deepcopy(args)
    guard(answer, *own, tried=tried)
    expect_unchanged(answer, args, own, tried)


def unchanged(was: Any, now: Any) -> bool:
    """Whether `now` still is what `was`, a copy of it made before, says. Objects are compared by what they hold."""
    if was is now:
        return True
    if type(was) is not type(now):
        return False
    if hasattr(was, "shape") and hasattr(was, "dtype"):
        if was.shape != now.shape or was.dtype != now.dtype:
            return False
        return bool(((was == now) | ((was != was) & (now != now))).all())
    if isinstance(was, (list, tuple, deque)):
        return len(was) == len(now) and all(map(unchanged, was, now))
    if isinstance(was, dict):
        return was.keys() == now.keys() and all(unchanged(value, now[key]) for key, value in was.items())
    if type(was).__eq__ is object.__eq__:
        return unchanged(getattr(was, "__dict__", None), getattr(now, "__dict__", None))
    return bool(was == now) or was != was


def _name_of_argument(answer: Callable[..., Any], place: int) -> str:
    try:
        return f"`{list(inspect.signature(answer).parameters)[place]}`"
    except (TypeError, ValueError, IndexError):
        return f"argument {place + 1}"


def _presented(present: Callable, got: Any, want: Any, tolerance: float) -> tuple[Any, Any]:
    found = difference(got, want, tolerance)
    if found and found[0] != "wrong-result":
        return got, want
    try:
        return present(got, want)
    except Exception:  # whatever an answer may hold
        return got, want


def _outcome(function: Callable[..., Any], args: tuple, own: tuple | None = None) -> Any:
    try:
        return function(*(copy.deepcopy(args) if own is None else own))
    except NotYet as error:
        if error.diagnosis != "raises":  # not attempted, or too slow: nothing to judge
            raise
        return Raised(error)
    except Exception as error:
        return Raised(error)


def _same(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, Raised) or isinstance(b, Raised):
        return isinstance(a, Raised) and isinstance(b, Raised)
    return same(a, b, tolerance)
