"""An exercise by its solution, taken from its source: graders compare answers with it, and mistakes are slips in it.

    PAIRS = Exercise("p1e1_pairs", count_pairs={"pairs-counted-once": {"counts.get(pair, 0) + 1": "1"}}, merge={...})

    @PAIRS.grader
    def grade_pairs(count_pairs, merge):
        PAIRS.judge("count_pairs", count_pairs, [([1, 2, 1, 2],), ...])

Where a copy of the course holds stubs, the solutions come from one packed file (`sources.py`).
"""

import ast
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import count
from typing import Any

from exercises.judging.comparing import brief
from exercises.judging.judge import When, judge
from exercises.judging.scripts import present, run_script, show_script
from exercises.judging.sources import cut, whole_source
from exercises.judging.verdict import Diagnoses, texts_of

CHECK = '# %% tags=["check"]'
Slip = Mapping[str, str]
_numbers = count()


def solution_source(name: str, asks: Sequence[str], slip: Slip, as_handed_out: bool = False) -> str:
    """The solution's source up to the check, with slips in it: what it imports, defines and answers. It runs nothing.

    Raises:
        ValueError: what is to be replaced does not stand in the source.
    """
    both = cut(whole_source(name).partition(CHECK)[0])
    source = both.student if as_handed_out else both.solution
    for old, new in slip.items():
        if old not in source:
            raise ValueError(f"{old!r} does not stand in {name}")
        source = source.replace(old, new)
    lines = source.splitlines()
    for node in ast.parse("\n".join(lines)).body:
        answers = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in asks
        if not answers and not isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines) + "\n"


def solved(
    name: str, asks: Sequence[str], slip: Mapping[str, Any] | None = None, as_handed_out: bool = False
) -> dict[str, Any]:
    """The answers of a solution by their names. Their lines are found by tracebacks, and by Triton.

    Args:
        slip: {what stands in the solution: what the learner wrote there}, or, in the banks of the tests only, {name of an answer:
            another answer}.
        as_handed_out: the answers as a learner gets them: stubs, or the planted bug of a debugging lab.
    """
    slip = slip or {}
    texts = {old: new for old, new in slip.items() if isinstance(new, str)}
    source = solution_source(name, asks, texts, as_handed_out)
    filename = f"<{name}, changed {next(_numbers)}>"
    linecache.cache[filename] = len(source), None, source.splitlines(keepends=True), filename
    names: dict[str, Any] = {"__name__": f"answers_{name}"}
    exec(compile(source, filename, "exec"), names)
    return {asked: slip.get(asked, names[asked]) for asked in asks}


def handed_out(name: str, asked: str, slip: Slip | None = None) -> Any:
    """One answer as a learner gets it."""
    return solved(name, (asked,), slip, as_handed_out=True)[asked]


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
            asked: {told: ways if isinstance(ways, tuple) else (ways,) for told, ways in known.items()}
            for asked, known in mistakes.items()
        }

    @property
    def hints(self) -> tuple[str, ...]:
        """A nudge, the formula, pseudo-code: in the text file each stands below `## which one it is`."""
        _, *hints = re.split(r"^## .*\n", texts_of(self.name)["hints"], flags=re.MULTILINE)
        return tuple(hint.strip("\n") for hint in hints)

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
        self.grade = grade
        return grade

    def wrong_answers(self) -> list[tuple[str, Slip]]:
        """(diagnosis, the slips of a wrong answer): each mistake that is an answer by itself."""
        return [
            (diagnosis, way)
            for mistakes in self.mistakes.values()
            for diagnosis, ways in mistakes.items()
            for way in ways
            if not isinstance(way, When)
        ]

    def judge(
        self,
        asked: str | tuple[str, ...],
        answer: Any,
        cases: Sequence[tuple],
        *,
        play: Callable[..., Any] | None = None,
        only: Sequence[str] | None = None,
        show: Callable[..., str] | None = None,
        **how: Any,
    ) -> None:
        """Raise NotYet unless an answer agrees with the solution in all cases; known mistakes get their diagnosis.

        Args:
            asked: the name of the answer, or the names of several that are judged together.
            play: what is done with the answers in each case, `play(*answers, *case)`, if they are not only called.
            only: the diagnoses that these cases may give.
            show, how: see `judge.judge`. By default the call is shown with the arguments, large tensors by their shapes.
        """
        names = (asked,) if isinstance(asked, str) else asked
        given = (answer,) if isinstance(asked, str) else answer

        def played(answers: Mapping[str, Any]) -> Callable[..., Any]:
            return partial(play, *(answers[name] for name in names)) if play else answers[names[0]]

        @cache
        def compiled(slip: tuple[tuple[str, str], ...]) -> Callable[..., Any]:
            return played(solved(self.name, self.asks, dict(slip)))

        def made(mistake: Slip | When) -> Any:
            if isinstance(mistake, When):
                return mistake
            return lambda *args: compiled(tuple(mistake.items()))(*args)

        known: dict[str, list[Any]] = {}
        for name in names:
            for diagnosis, ways in self.mistakes[name].items():
                if only is None or diagnosis in only:
                    known.setdefault(diagnosis, []).extend(map(made, ways))
        says, right = self.says(names[0]), played(self.answers)
        judge(
            played(dict(zip(names, given, strict=True))),
            cases,
            right,
            known,
            says,
            show=show or (lambda *args: brief(names[0], args, right)),
            **how,
        )

    def judge_scripts(self, asked: str, answer: Any, scripts: Sequence[str]) -> None:
        """The same for a class that scripts use by its name."""
        self.judge(
            asked,
            answer,
            [(script,) for script in scripts],
            play=lambda answer, script: run_script(script, **{asked: answer}),
            show=show_script,
            present=present,
        )
