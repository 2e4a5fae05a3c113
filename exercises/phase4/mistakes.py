"""Telling which mistake an answer makes: it is compared with the right one, and with what each mistake would give."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from exercises.grading import NotAttempted, NotYet, guard
from exercises.judging.judge import Raised, best_mistake, expect_unchanged


def name_the_mistake(
    answer: Callable,
    cases: Sequence[tuple],
    right: Callable,
    mistakes: Mapping[str, tuple[Callable, str]],
    tried: Callable[..., str],
    same: Callable[[Any, Any], bool] = operator.eq,
    clean: Callable[[Any], Any] = lambda result: result,
    show: Callable[[Any], str] = str,
    look: Callable[[tuple, tuple], None] | None = None,
) -> None:
    """Return if `answer` equals `right` in all cases; otherwise raise NotYet. As `judge` of phase 1, with results in words.

    Args:
        cases: arguments, one tuple a case; each call gets its own copy.
        mistakes: diagnosis -> (what this mistake computes, what to say of it).
        tried: the arguments in words. show: a result in words.
        clean: checks the kind of a result and brings it into the form that `same` compares.
        look: gets the arguments before and after the call; raises NotYet if the answer must not change them so.
            Without it no argument may have changed, which is looked at when all results are right.
    """
    got: list[Any] = []
    given = [deepcopy(args) for args in cases]  # not in one go: cases may share a list
    for args, own in zip(cases, given, strict=True):
        try:
            got.append(clean(guard(answer, *own, tried=tried(*args))))
            if look is not None:
                look(args, own)
        except NotAttempted:
            raise
        except NotYet as error:
            if error.diagnosis != "raises":
                raise
            got.append(Raised(error))

    def alike(a: Any, b: Any) -> bool:
        if isinstance(a, Raised) or isinstance(b, Raised):
            return isinstance(a, Raised) and isinstance(b, Raised)
        return same(a, b)

    expected = [clean(right(*deepcopy(args))) for args in cases]
    bad = [i for i in range(len(cases)) if not alike(got[i], expected[i])]
    if not bad:
        for args, own in zip(cases, given, strict=True):
            if look is None:
                expect_unchanged(answer, args, own, tried(*args))
        return
    first = bad[0]

    def theirs(wrong: Callable, args: tuple) -> Any:
        try:
            return clean(wrong(*deepcopy(args)))
        except Exception as error:
            return Raised(error)

    best = best_mistake(
        mistakes, lambda wrong: [alike(g, theirs(wrong, a)) for g, a in zip(got, cases, strict=True)], bad
    )
    if best is None and isinstance(got[first], Raised):
        raise got[first].error
    diagnosis, says = best or ("wrong-result", "The result is another one. Work this case out by hand.")
    raise NotYet(
        diagnosis=diagnosis,
        says=says,
        tried=tried(*cases[first]),
        got=got[first].error.says if isinstance(got[first], Raised) else show(got[first]),
        expected=show(expected[first]),
    )
