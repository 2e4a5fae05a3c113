"""An exercise, and how its answers are judged: by several cases at once, against the solution.

    PAIRS = Exercise("p1e1_pairs", count_pairs={"pairs-counted-once": {"counts.get(pair, 0) + 1": "1"}}, merge={...})

    @PAIRS.grader
    def grade_pairs(count_pairs, merge):
        PAIRS.judge("count_pairs", count_pairs, [([1, 2, 1, 2],), ...])

Two mistakes often give the same wrong result for one input. So a grader tries all its cases first. It names the known
mistake that gives the learner's results in most cases, right ones included. That mistake must explain the first case that went
wrong, and the cases in which it differs must be fewer than half of those that went wrong.
"""

import copy
import inspect
import itertools
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any

from exercises.judging.answers import guard
from exercises.judging.comparing import as_sentence, brief, difference, same, show_both
from exercises.judging.comparing import show as as_text
from exercises.judging.scripts import When, run_script, show_script
from exercises.judging.scripts import present as present_scripts
from exercises.judging.sources import Slip, solved, source_of, title_of
from exercises.judging.transcript import event
from exercises.judging.verdict import Diagnoses, NotYet, texts_of

OTHERWISE = "This result is wrong. Work the case out by hand."  # where no known mistake gives it


class Raised:
    """What came out was an exception. Two are the same mistake if they are of one kind."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        # `guard` told it in words; the learner's own stands behind that.
        self.kind = type(error.__context__ if isinstance(error, NotYet) else error)


class Exercise:
    """What the learner writes, and how it is judged.

    Args:
        name: the notebook's name, such as "p1e1_pairs". seconds: how long the grader may run.
        mistakes: for each answer that it asks for, in the order in which `check` gets them, the known mistakes by their
            diagnoses. A mistake is a slip in the solution, a `When`, or a tuple of these.

    Attributes:
        grade: `grade(*answers)` raises NotYet, or returns. It runs in a process of its own.
    """

    grade: Callable[..., Any]

    def __init__(self, name: str, seconds: float = 10.0, /, **mistakes: Mapping[str, Any]) -> None:
        self.name, self.seconds, self.asks = name, seconds, tuple(mistakes)
        self.mistakes = {
            asked: [
                (told, way)
                for told, ways in known.items()
                for way in (ways if type(ways) is tuple else [ways])
            ]
            for asked, known in mistakes.items()
        }

    @property
    def hints(self) -> tuple[str, ...]:
        """A nudge, the formula, pseudo-code: in the text file each stands below `## which one it is`."""
        _, *hints = re.split(r"^## .*\n", texts_of(self.name)["hints"], flags=re.MULTILINE)
        return tuple(hint.strip("\n") for hint in hints)

    @cached_property
    def heading(self) -> str:
        return title_of(source_of(self.name))

    @cached_property
    def answers(self) -> dict[str, Any]:
        """The right answers, by their names."""
        return solved(self.name, self.asks)

    def says(self, asked: str = "") -> Diagnoses:
        """What to say of mistakes in one of the answers: below `# diagnoses NAME` of the texts, or below `# diagnoses`."""
        texts = texts_of(self.name)
        lines = texts.get(f"diagnoses {asked}") or texts["diagnoses"]
        return Diagnoses(line.split(": ", 1) for line in lines.splitlines() if line)

    def grader(self, grade: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates the function that judges the answers."""
        self.grade = grade
        return grade

    def wrong_answers(self) -> list[tuple[str, Slip]]:
        """(diagnosis, the slips of a wrong answer): each mistake that is an answer by itself."""
        ways = itertools.chain(*self.mistakes.values())
        return [(diagnosis, way) for diagnosis, way in ways if not isinstance(way, When)]

    def judge(
        self,
        asked: str | tuple[str, ...],
        answer: Any,
        cases: Sequence[tuple],
        *,
        play: Callable[..., Any] | None = None,
        only: Sequence[str] | None = None,
        show: Callable[..., str] | None = None,
        tolerance: float = 1e-4,
        clean: Callable[[Any], Any] = lambda result: result,
        present: Callable[[Any, Any], tuple[Any, Any]] = lambda got, want: (got, want),
        keeps_input: bool = True,
    ) -> None:
        """Raise NotYet unless an answer agrees with the solution in all cases; known mistakes get their diagnosis.

        Args:
            asked: the name of the answer, or the names of several that are judged together.
            cases: the arguments of each call. Answer, solution and mistakes get copies of their own.
            play: what is done with the answers in each case, `play(*answers, *case)`, if they are not only called.
            only: the diagnoses that these cases may give.
            show: the call as the learner would write it, for the box: `show(*args)`; by default with the arguments, large
                tensors by their shapes.
            tolerance: largest difference of two numbers, relative to the larger one if that is above 1.
            clean: checks the kind of a result and brings it into the form that is compared. It may raise NotYet.
            present: (result, right result) as the box shows them, shorter or in lines. Not called where an array has a wrong
                shape; if it fails the two are shown whole.
            keeps_input: whether an answer that changes its arguments is wrong, though all its results are right.
        """
        names = (asked,) if isinstance(asked, str) else asked
        handed_in = (answer,) if isinstance(asked, str) else answer
        given = [copy.deepcopy(args) for args in cases]  # not in one go: cases may share a tensor

        def played(answers: Mapping[str, Any]) -> Callable[..., Any]:
            return partial(play, *(answers[name] for name in names)) if play else answers[names[0]]

        @cache
        def with_slips(slips: tuple[tuple[str, str], ...]) -> Callable[..., Any]:
            return played(solved(self.name, self.asks, dict(slips)))

        answer, right = played(dict(zip(names, handed_in, strict=True))), played(self.answers)
        says = self.says(names[0])
        mistakes = [m for name in names for m in self.mistakes[name] if only is None or m[0] in only]
        shown_call = show or (lambda *args: brief(names[0], args, right))

        def called(function: Callable[..., Any], args: tuple) -> Any:
            out = function(*args)
            return out if out is None else clean(out)

        def outcome(args: tuple, own: tuple) -> Any:
            try:
                return called(lambda *own: guard(answer, own, shown_call(*args)), own)
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
        expected = [called(right, copy.deepcopy(args)) for args in cases]
        wrong = [
            i for i, (got, want) in enumerate(zip(outcomes, expected, strict=True)) if not alike(got, want)
        ]
        if not wrong:
            if keeps_input and (late := [i for i, place in enumerate(changed) if place is not None]):
                args, own, place = cases[late[0]], given[late[0]], changed[late[0]]
                name = list(inspect.signature(right).parameters)[place]
                text = says.get("changes-its-input", CHANGED).replace("{name}", f"`{name}`")
                tried = f"{shown_call(*args)}, then a look at what was given"
                raise NotYet("changes-its-input", text, tried, as_text(own[place]), as_text(args[place]))
            return
        first = wrong[0]
        got, want, tried = outcomes[first], expected[first], shown_call(*cases[first])
        kind, sentence = ("raises", "") if isinstance(got, Raised) else difference(got, want, tolerance)
        if kind in ("returns-nothing", "wrong-type"):  # no mistake in what is computed
            raise NotYet(kind, as_sentence(sentence), tried, *show_both(got, want))

        def explains(way: Slip | When, i: int) -> bool:
            try:
                if isinstance(way, When):
                    return i not in wrong or bool(way.test(outcomes[i], expected[i], *cases[i]))
                theirs = called(with_slips((*way.items(),)), copy.deepcopy(cases[i]))
            except Exception as error:
                theirs = Raised(error)
            return not isinstance(way, When) and alike(theirs, outcomes[i])

        def best_of(seen: bool) -> str | None:
            """The mistake that explains most, of those seen by a `When` or of the others; None if none explains enough."""
            best, most = None, len(cases) - len(wrong) / 2
            for diagnosis, way in mistakes:
                if isinstance(way, When) is not seen or not explains(way, first):
                    continue
                if (explained := sum(explains(way, i) for i in range(len(cases)))) > most:
                    best, most = diagnosis, explained
                if most == len(cases):  # no other explains more, and a case may take long
                    break
            return best

        best = best_of(False) or best_of(True)
        if isinstance(got, Raised):
            if best is None:
                raise got.error
            shown = getattr(got.error, "says", got.error), _presented(present, want, want, kind)[1]
        else:
            shown = _presented(present, got, want, kind)
        if best is None:
            text = as_sentence(sentence)
            raise NotYet(kind, f"{OTHERWISE} {text}" if kind == "wrong-result" else text, tried, *shown)
        raise NotYet(best, says[best], tried, *shown)

    def judge_scripts(self, asked: str, answer: Any, scripts: Sequence[str]) -> None:
        """The same for a class that scripts use by its name."""
        self.judge(
            asked,
            answer,
            [(script,) for script in scripts],
            play=lambda answer, script: run_script(script, **{asked: answer}),
            show=show_script,
            present=present_scripts,
        )

    def judge_cause(self, cause: Any) -> None:
        """The number of the sentence that says what was wrong in a debugging lab; "3" is as good as 3.

        Raises:
            NotYet: it is no number from 1 to 5, or another one.
        """
        number = str(cause).strip().rstrip(".")
        if number not in ("1", "2", "3", "4", "5"):
            wrong = "`cause` is the number of a sentence: a number from 1 to 5, without quotes."
            raise NotYet("wrong-type", wrong, "cause", repr(cause), "a number from 1 to 5")
        if int(number) != self.answers["cause"]:
            raise self.says().no("another-cause", "cause", repr(cause), "another sentence")


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


def _presented(present: Callable, got: Any, want: Any, kind: str) -> tuple[Any, Any]:
    if kind == "wrong-shape" and not isinstance(want, (list, tuple)):
        return got, want
    try:
        return present(got, want)
    except Exception:  # whatever an answer may hold
        return got, want
