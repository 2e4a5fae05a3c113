"""All exercises, gathered from the graders of each phase: exercises/phaseN/grade_*.py."""

import importlib
import re
from dataclasses import replace
from functools import cache

from exercises.judging.solutions import Solution
from exercises.judging.sources import SOURCES, all_names, the_one
from exercises.judging.verdict import Exercise, WrongCall, texts_of
from labkit.errors import LabError


@cache
def exercises_of(phase: int) -> dict[str, Exercise]:
    """The exercises of one phase, by name: a check in a notebook does not wait for the other phases' graders."""
    graders = sorted((SOURCES / f"phase{phase}").glob("grade_*.py"))
    modules = [importlib.import_module(f"exercises.phase{phase}.{grader.stem}") for grader in graders]
    found = [s.exercise for module in modules for s in vars(module).values() if isinstance(s, Solution)]
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
    try:
        found = the_one(name, all_names(), "exercise", ". It is called as its notebook is, without .ipynb.")
    except LabError as error:
        raise WrongCall(str(error)) from None
    return exercises_of(int(found[1]))[found]
