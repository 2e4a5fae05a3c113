"""The graders, tried with answers that learners give: every mistake that a grader knows, made in the solution, has to get its
diagnosis, and no other. answers/<exercise>.py holds right answers, and wrong ones that no slip in the solution gives.

    RIGHT = answer                         # written otherwise than the solution
    WRONG = {"diagnosis-id": answer, ...}  # each with the diagnosis that it must get

In place of an answer a list may stand.

An answer is what `check` gets after the name: one thing, or a tuple where an exercise asks for several. A dictionary is
the solution with slips in it: {what stands there: what the learner wrote}, or {name of an answer: another answer}.
"""

import ast
import re
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from exercises import grading
from exercises.classroom.answering import recorded, replayed
from exercises.judging.registry import exercises_of, find
from exercises.judging.sandbox import calm_down
from exercises.judging.sources import all_names, all_sources, source_of, title_of
from exercises.judging.verdict import Verdict, texts_of
from labkit.models import embedded_models
from labkit.paths import ROOT
from tests.exercises.changed import answers_of, bank_of

BANKS = Path(__file__).parent / "answers"
NAMES = all_names()
OF_THE_FRAMEWORK = {*re.findall(r'"([a-z-]+)"', grading.__doc__)}
# Said by a notebook's last cells, where no bank comes.
IN_THE_ENGINE = {"fails-in-the-engine", "not-compiled"}


@cache
def right_ones(name: str) -> list[tuple[Any, ...]]:
    """The solution, and the right answers of the bank."""
    return [answers_of(name, answer) for answer in ({}, *bank_of(name)[0])]


def misspells(*args, **kwargs):
    return nmae  # noqa: F821


def crashing(right: Any) -> Any:
    """A right answer whose every function, or every method of a class, is misspelled."""
    if isinstance(right, tuple):
        return tuple(map(crashing, right))
    if isinstance(right, type):
        return type(right.__name__, (right,), {n: misspells for n, m in vars(right).items() if callable(m)})
    return misspells if isinstance(right, FunctionType) else right


@cache
def wrong_ones(name: str) -> list[tuple[str, tuple[Any, ...]]]:
    """(the diagnosis, the answer): the mistakes that the grader knows, those of the bank, and one that crashes."""
    right = right_ones(name)[0]
    crash = [("raises", crashing(right))] if crashing(right) != right else []
    return [
        (told, answers_of(name, one)) for told, one in (*bank_of(name)[1], *find(name).wrong_answers())
    ] + crash


def judge_all(name: str, wrong: bool) -> list[Verdict]:
    """Verdicts on the wrong answers; or on the right ones, also by their transcripts, as `lab grade` judges."""
    exercise, answers = find(name), [answer for _, answer in wrong_ones(name)] if wrong else right_ones(name)
    judged = [recorded(exercise, answer) for answer in answers]
    return [verdict for verdict, _ in judged] + [replayed(exercise, t)[0] for _, t in judged if not wrong]


def verdicts(name: str, wrong: bool) -> list[Verdict]:
    """From one process for the whole bank: one for each answer, as a learner has it, would take four times as long."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork"), initializer=calm_down) as one_process:
        return one_process.submit(judge_all, name, wrong).result()


# ------------------------------------------------------------------ what there is


def test_every_source_has_a_grader_and_every_grader_a_source():
    assert [name for phase in range(1, 6) for name in exercises_of(phase)] == NAMES, (
        "the order of the sources' headings"
    )
    assert {p.stem for p in BANKS.glob("*.py")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_exercise_is_whole(name):
    exercise = find(name)
    assert exercise.name == name and title_of(source_of(name)) != name
    assert exercise.asks and len(exercise.hints) == 3 and all(h.strip() for h in exercise.hints)
    assert len(right_ones(name)) >= 2
    assert len({diagnosis for diagnosis, _ in wrong_ones(name)} - OF_THE_FRAMEWORK) >= 4


# ------------------------------------------------------------------ answers


# One takes half a minute in Triton's interpreter.
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.proof] * (n == "p5e1_paged_decode")) for n in NAMES]
)
def test_right_answers_are_correct_and_their_transcripts_say_so(name):
    assert [verdict for verdict in verdicts(name, wrong=False) if verdict.state != "correct"] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_answer_gets_its_own_diagnosis(name):
    for (diagnosis, _), verdict in zip(wrong_ones(name), verdicts(name, wrong=True), strict=True):
        assert (verdict.state, verdict.diagnosis) == ("not yet", diagnosis) and verdict.says, verdict


@pytest.mark.parametrize("phase", range(1, 6))
def test_every_diagnosis_has_a_wrong_answer_that_gets_it(phase):
    """All in an exercise's text file, and any text in a phase's graders that looks like-this, is a diagnosis."""
    known = {d for name in NAMES if int(name[1]) == phase for d, _ in wrong_ones(name)}
    folder = ROOT / "exercises" / f"phase{phase}"
    unheard = {
        text: f"{name}.txt"
        for name in NAMES
        if int(name[1]) == phase
        for part, lines in texts_of(name).items()
        if part.startswith("diagnoses")
        for text in re.findall(r"^([\w-]+).*: ", lines, re.MULTILINE)
    }
    assert unheard
    for path in sorted(folder.glob("*.py")):
        if path in all_sources():
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(r"[a-z][a-z0-9]*(-[a-z][a-z0-9]*)+", text):
                unheard[text] = f"{path.name}:{node.lineno}"
    for text in known | OF_THE_FRAMEWORK | IN_THE_ENGINE | set(embedded_models()):
        unheard.pop(text, None)
    assert not unheard
