"""Judging an answer by several cases at once, so that a mistake is named only if it explains all of them.

Two mistakes often give the same wrong result for one input. So a grader tries all its cases first. A known mistake
is named if it would give the learner's result in every case, right ones included; failing that, if it explains the
first case that went wrong and more than half of all that did.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from exercises.comparing import difference, same
from exercises.grading import NotYet, expect_equal, guard

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
) -> None:
    """Raise NotYet unless `answer` agrees with `reference` in all cases.

    Args:
        cases: the arguments of each call. Answer, reference and mistakes get copies of their own.
        reference, mistakes: called with the same arguments.
        show: the call as the learner would write it, for the box: `show(*args)`.
        present: (result, right result) as the box shows them, shorter or in lines. Called only with what has the right
            type and shape; if it fails the two are shown whole.
        tolerance: largest difference of two numbers, relative to the larger one if that is above 1.
    """
    outcomes = [_outcome(lambda *a: guard(answer, *a, tried=show(*a)), args) for args in cases]
    expected = [reference(*copy.deepcopy(args)) for args in cases]
    wrong = [i for i, (got, want) in enumerate(zip(outcomes, expected)) if not _same(got, want, tolerance)]
    if not wrong:
        return
    first = wrong[0]
    got, want, tried = outcomes[first], expected[first], show(*cases[first])
    if not isinstance(got, Raised):
        found = difference(got, want, tolerance)
        if found and found[0] in ("returns-nothing", "wrong-type"):  # no mistake in what is computed
            expect_equal(got, want, tried=tried, tolerance=tolerance)
    best, most = None, len(wrong) / 2
    for diagnosis, (ways, says) in mistakes.items():
        for way in ways if isinstance(ways, tuple) else (ways,):
            explained = [_same(_outcome(way, args), out, tolerance) for args, out in zip(cases, outcomes)]
            how_many = len(cases) + 1 if all(explained) else sum(explained[i] for i in wrong)
            if explained[first] and how_many > most:
                best, most = (diagnosis, says), how_many
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


def _presented(present: Callable, got: Any, want: Any, tolerance: float) -> tuple[Any, Any]:
    found = difference(got, want, tolerance)
    if found and found[0] != "wrong-result":
        return got, want
    try:
        return present(got, want)
    except Exception:  # whatever an answer may hold
        return got, want


def _outcome(function: Callable[..., Any], args: tuple) -> Any:
    try:
        return function(*copy.deepcopy(args))
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
