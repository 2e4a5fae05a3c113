"""The solution of an exercise, taken from its source: graders compare answers with it, and mistakes are slips in it.

    PAIRS = Solution("p1e1_pairs", count_pairs={"pairs-counted-once": {"counts.get(pair, 0) + 1": "1"}}, merge={...})

    @PAIRS.grader
    def grade_pairs(count_pairs, merge):
        PAIRS.judge("count_pairs", count_pairs, [([1, 2, 1, 2],), ...])

Where a copy of the course holds stubs, the solutions come from one packed file (`sources.py`).
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from exercises.judging.comparing import brief
from exercises.judging.judge import When, judge
from exercises.judging.scripts import Outcome, present, scripted, show_script
from exercises.judging.slips import Slip, defined_by, with_slip
from exercises.judging.sources import cut, whole_source
from exercises.judging.verdict import Diagnoses, Exercise, texts_of

CHECK = '# %% tags=["check"]'


def solution_source(name: str, asks: Sequence[str], slip: Slip) -> str:
    """The solution's source up to the check, with slips in it: what it imports, defines and answers. It runs nothing."""
    lines = with_slip(cut(whole_source(name).partition(CHECK)[0]).solution, slip, name).splitlines()
    for node in ast.parse("\n".join(lines)).body:
        answers = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in asks
        if not answers and not isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines) + "\n"


def solved(name: str, asks: Sequence[str], slip: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The answers of a solution by their names.

    Args:
        slip: {what stands in the solution: what the learner wrote there}, or {name of an answer: another answer}.
    """
    slip = slip or {}
    texts = {old: new for old, new in slip.items() if isinstance(new, str)}
    names: dict[str, Any] = {"__name__": f"answers_{name}"}
    defined_by(solution_source(name, asks, texts), name, names, into=names)
    return {asked: slip.get(asked, names[asked]) for asked in asks}


class Solution:
    """An exercise by its solution.

    Args:
        name: of the exercise. seconds: how long the grader may run.
        mistakes: for each answer that it asks for, in that order, the known mistakes by their diagnoses. A mistake is a
            slip in the solution, an answer of its own, a `When`, or a tuple of these.
    """

    exercise: Exercise

    def __init__(self, name: str, seconds: float = 10.0, /, **mistakes: Mapping[str, Any]) -> None:
        self.name, self.seconds, self.mistakes, self.asks = name, seconds, mistakes, tuple(mistakes)

    @cached_property
    def answers(self) -> dict[str, Any]:
        """The right answers, by their names."""
        return solved(self.name, self.asks)

    def says(self, asked: str = "") -> Diagnoses:
        """What to say of mistakes in one of the answers: below `# diagnoses NAME` of the texts, or below `# diagnoses`."""
        part = f" {asked}" if f"diagnoses {asked}" in texts_of(self.name) else ""
        return Diagnoses.of(self.name + part)

    def grader(self, grade: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates the function that judges the answers."""
        asks, how = self.asks, dict(seconds=self.seconds, mistakes=self.wrong_answers)
        self.exercise = Exercise(self.name, asks, grade, **how)
        return grade

    def wrong_answers(self) -> list[tuple[str, Slip]]:
        """(diagnosis, the slips of a wrong answer): each mistake that is an answer by itself."""
        return [
            (diagnosis, way if isinstance(way, Mapping) else {asked: way})
            for asked, mistakes in self.mistakes.items()
            for diagnosis, ways in mistakes.items()
            for way in (ways if isinstance(ways, tuple) else (ways,))
            if not isinstance(way, When)
        ]

    def judge(
        self,
        asked: str | tuple[str, ...],
        answer: Any,
        cases: Sequence[tuple],
        *,
        play: Callable[..., Callable[..., Any]] = lambda answer: answer,
        only: Sequence[str] | None = None,
        show: Callable[..., str] | None = None,
        **how: Any,
    ) -> None:
        """Raise NotYet unless an answer agrees with the solution in all cases; known mistakes get their diagnosis.

        Args:
            asked: the name of the answer, or the names of several that are judged together.
            play: what is done with the answers in each case, `play(*answers)(*case)`, if not only called.
            only: the diagnoses that these cases may give.
            show, how: see `judge.judge`. By default the call is shown with the arguments, large tensors by their shapes.
        """
        names = (asked,) if isinstance(asked, str) else asked
        given = (answer,) if isinstance(asked, str) else answer

        @cache
        def compiled(slip: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
            answers = solved(self.name, self.asks, dict(slip))
            return play(*(answers[name] for name in names))

        def way(name: str, mistake: Any) -> Any:
            if isinstance(mistake, When):
                return mistake
            slip = tuple((mistake if isinstance(mistake, Mapping) else {name: mistake}).items())
            return lambda *args: compiled(slip)(*args)

        known: dict[str, tuple[Any, ...]] = {}
        for name in names:
            for diagnosis, ways in self.mistakes[name].items():
                if only is None or diagnosis in only:
                    ways = ways if isinstance(ways, tuple) else (ways,)
                    known[diagnosis] = known.get(diagnosis, ()) + tuple(way(name, each) for each in ways)
        says, right = self.says(names[0]), play(*(self.answers[name] for name in names))
        judge(
            play(*given),
            cases,
            right,
            known,
            says,
            show=show or (lambda *args: brief(names[0], args, right)),
            **how,
        )

    def judge_scripts(self, asked: str, answer: Any, scripts: Sequence[str]) -> None:
        """The same for a class that scripts use by its name."""

        def play(answer: Any) -> Callable[[str], Outcome]:
            return scripted(**{asked: answer})

        cases = [(script,) for script in scripts]
        self.judge(asked, answer, cases, play=play, show=show_script, present=present)
