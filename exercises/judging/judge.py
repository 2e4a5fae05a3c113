"""Judging an answer by several cases at once, so that a mistake is named only if it explains all of them.

Two mistakes often give the same wrong result for one input. So a grader tries all its cases first. A known mistake
is named if it would give the learner's result in every case, right ones included; failing that, if it explains the
first case that went wrong and more than half of all that did.
"""

import copy
import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from exercises.judging.answers import guard
from exercises.judging.comparing import as_sentence, difference, same, show_both
from exercises.judging.comparing import show as as_text
from exercises.judging.transcript import event
from exercises.judging.verdict import NotAttempted, NotYet

OTHERWISE = "The result is another one. Work this case out by hand."  # where no known mistake gives it


class When:
    """A mistake that is seen by what came out: `test(got, right result, *arguments)`. Asked when no other explains it."""

    def __init__(self, test: Callable[..., bool]) -> None:
        self.test = test


Way = Callable[..., Any] | When


class Raised:
    """What came out was an exception. Two are the same mistake if they are of one kind."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        # `guard` told it in words; the learner's own stands behind that.
        self.kind = type(error.__context__ if isinstance(error, NotYet) else error)


def judge(
    answer: Callable[..., Any],
    cases: Sequence[tuple],
    reference: Callable[..., Any],
    mistakes: Mapping[str, Sequence[Way]],
    says: Mapping[str, str],
    *,
    show: Callable[..., str],
    tolerance: float = 1e-4,
    clean: Callable[[Any], Any] = lambda result: result,
    present: Callable[[Any, Any], tuple[Any, Any]] = lambda got, want: (got, want),
    keeps_input: bool = True,
) -> None:
    """Raise NotYet unless `answer` agrees with `reference` in all cases.

    Args:
        cases: the arguments of each call. Answer, reference and mistakes get copies of their own.
        reference: called with the same arguments.
        mistakes: by diagnosis, the ways to make it: what the mistake would give.
        says: by diagnosis, what to tell the learner.
        show: the call as the learner would write it, for the box: `show(*args)`.
        tolerance: largest difference of two numbers, relative to the larger one if that is above 1.
        clean: checks the kind of a result and brings it into the form that is compared. It may raise NotYet.
        present: (result, right result) as the box shows them, shorter or in lines. Not called where an array has a wrong
            shape; if it fails the two are shown whole.
        keeps_input: whether an answer that changes its arguments is wrong, though all its results are right.
    """
    given = [copy.deepcopy(args) for args in cases]  # not in one go: cases may share a tensor

    def called(function: Callable[..., Any], args: tuple) -> Any:
        out = function(*args)
        return out if out is None else clean(out)

    def outcome(args: tuple, own: tuple) -> Any:
        try:
            return called(lambda *own: guard(answer, own, show(*args)), own)
        except NotYet as error:
            if error.diagnosis != "raises":  # not attempted, or too slow: nothing to judge
                raise
            return Raised(error)

    def alike(a: Any, b: Any) -> bool:
        if isinstance(a, Raised) or isinstance(b, Raised):
            return isinstance(a, Raised) and isinstance(b, Raised) and a.kind is b.kind
        plain = type(a) is list and a and type(a[0]) in (tuple, dict)  # records of a play, often long
        return bool(plain and a == b) or same(a, b, tolerance)

    def tried_out() -> list[tuple[Any, int | None]]:
        return [(outcome(args, own), changed_argument(args, own)) for args, own in zip(cases, given)]

    outcomes, changed = zip(*event(tried_out))
    expected = [called(reference, copy.deepcopy(args)) for args in cases]
    wrong = [i for i, (got, want) in enumerate(zip(outcomes, expected, strict=True)) if not alike(got, want)]
    if not wrong:
        if keeps_input and (late := [i for i, place in enumerate(changed) if place is not None]):
            args, own, place = cases[late[0]], given[late[0]], changed[late[0]]
            text = says.get("changes-its-input", CHANGED).replace("{name}", _name_of_argument(answer, place))
            tried = f"{show(*args)}, then a look at what was given"
            raise NotYet("changes-its-input", text, tried, as_text(own[place]), as_text(args[place]))
        return
    first = wrong[0]
    got, want, tried = outcomes[first], expected[first], show(*cases[first])
    kind, sentence = ("raises", "") if isinstance(got, Raised) else difference(got, want, tolerance)
    if kind in ("returns-nothing", "wrong-type"):  # no mistake in what is computed
        raise NotYet(kind, as_sentence(sentence), tried, *show_both(got, want))

    def explains(way: Way, i: int) -> bool:
        try:
            if isinstance(way, When):
                return i in wrong and bool(way.test(outcomes[i], expected[i], *cases[i]))
            theirs = called(way, copy.deepcopy(cases[i]))
        except Exception as error:
            theirs = Raised(error)
        return not isinstance(way, When) and alike(theirs, outcomes[i])

    def best_of(seen: bool) -> str | None:
        """The mistake that explains most, of those seen by a `When` or of the others; None if none explains enough."""
        best, most = None, len(wrong) / 2
        for diagnosis, ways in mistakes.items():
            for way in ways:
                if isinstance(way, When) is seen and explains(way, first):
                    explained = [explains(way, i) for i in range(len(cases))]
                    if all(explained):
                        return diagnosis
                    if (score := sum(explained[i] for i in wrong)) > most:
                        best, most = diagnosis, score
        return best

    best = best_of(False) or best_of(True)
    if isinstance(got, Raised):
        if best is None:
            raise got.error
        shown = getattr(got.error, "says", got.error), _presented(present, want, want, kind)[1]
    else:
        shown = _presented(present, got, want, kind)
    if best is None:
        text = as_sentence(f"{OTHERWISE} {sentence}".strip() if kind == "wrong-result" else sentence)
        raise NotYet(kind, text, tried, *shown)
    raise NotYet(best, says[best], tried, *shown)


CHANGED = "Your answer changed what it was given ({name}). The caller still needs it: work on a copy."


def changed_argument(before: Sequence[Any], after: Sequence[Any]) -> int | None:
    """The place of the first argument that is not what it was before the call."""
    return next((i for i, (was, now) in enumerate(zip(before, after)) if not unchanged(was, now)), None)


def unchanged(was: Any, now: Any) -> bool:
    """Whether `now` still is what `was`, a copy of it made before, says. Objects are compared by what they hold."""
    if was is now or type(was) is not type(now):
        return was is now
    if isinstance(was, (list, tuple, deque)):
        return len(was) == len(now) and all(map(unchanged, was, now))
    if isinstance(was, dict):
        return was.keys() == now.keys() and all(unchanged(value, now[key]) for key, value in was.items())
    if type(was).__eq__ is object.__eq__:
        return unchanged(getattr(was, "__dict__", None), getattr(now, "__dict__", None))
    return same(now, was, 0)


def _name_of_argument(answer: Callable[..., Any], place: int) -> str:
    try:
        return f"`{list(inspect.signature(answer).parameters)[place]}`"
    except (TypeError, ValueError, IndexError):
        return f"argument {place + 1}"


def _presented(present: Callable, got: Any, want: Any, kind: str) -> tuple[Any, Any]:
    if kind == "wrong-shape" and not isinstance(want, (list, tuple)):
        return got, want
    try:
        return present(got, want)
    except Exception:  # whatever an answer may hold
        return got, want


def expect_cause(cause: Any, right: int, says: Mapping[str, str], most: int = 5) -> None:
    """The number of the sentence that says what was wrong in a debugging lab; "3" is as good as 3.

    Raises:
        NotAttempted: nothing is chosen yet. NotYet: it is no number from 1 to `most`, or another one.
    """
    if cause is None or cause is Ellipsis:
        raise NotAttempted("Find the cause first: which of the five sentences is it?")
    number = str(cause).strip().rstrip(".")
    if number not in map(str, range(1, most + 1)):
        wrong = f"`cause` is the number of a sentence: a number from 1 to {most}, without quotes."
        raise NotYet("wrong-type", wrong, "cause", repr(cause), f"a number from 1 to {most}")
    if int(number) != right:
        raise NotYet("another-cause", says["another-cause"], "cause", repr(cause), "another sentence")
