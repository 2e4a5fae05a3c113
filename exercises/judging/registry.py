"""All exercises, gathered from the graders of each phase: exercises/phaseN/grade_*.py."""

import difflib
import importlib
import re
from dataclasses import replace
from functools import cache

from exercises.judging.sources import SOURCES, all_names, meant_by
from exercises.judging.verdict import Exercise, WrongCall, texts_of


@cache
def exercises_of(phase: int) -> dict[str, Exercise]:
    """The exercises of one phase, by name: a check in a notebook does not wait for the other phases' graders."""
    graders = sorted((SOURCES / f"phase{phase}").glob("grade_*.py"))
    found = [
        exercise
        for grader in graders
        for exercise in importlib.import_module(f"exercises.phase{phase}.{grader.stem}").EXERCISES
    ]
    names = all_names()
    return {
        e.name: replace(e, hints=hints_of(e.name)) for e in sorted(found, key=lambda e: names.index(e.name))
    }


def hints_of(name: str) -> tuple[str, ...]:
    """The hints of an exercise. Above each stands `## which one it is`."""
    return tuple(
        h.strip("\n") for h in re.split(r"^## .*\n", texts_of(name)["hints"], flags=re.MULTILINE)[1:]
    )


def find(name: str) -> Exercise:
    """An exercise by its name (p1e1_pairs), its number (1.1 or p1e1), or the beginning of its name.

    Raises:
        WrongCall: there is none of that name, or there are several.
    """
    number = re.match(r"p?(\d)", name)
    exercises = exercises_of(int(number[1])) if number else {}
    found = meant_by(name, exercises)
    if len(found) == 1:
        return exercises[found[0]]
    if found:
        raise WrongCall(f"{name!r} is the beginning of {len(found)} exercises: {', '.join(found)}")
    near = difflib.get_close_matches(name, all_names(), 1, 0.6)
    raise WrongCall(
        f"no exercise is called {name!r}"
        + (f": did you mean {near[0]}?" if near else ". It is called as its notebook is, without .ipynb.")
    )
