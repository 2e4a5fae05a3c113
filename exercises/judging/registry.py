"""All exercises, gathered from the graders of each phase: exercises/phaseN/grade_*.py."""

import importlib
from functools import cache

from exercises.judging.judge import Exercise
from exercises.judging.sources import SOURCES, all_names, the_one


@cache
def exercises_of(phase: int) -> dict[str, Exercise]:
    """The exercises of one phase, by name: a check in a notebook does not wait for the other phases' graders."""
    graders = sorted((SOURCES / f"phase{phase}").glob("grade_*.py"))
    modules = [importlib.import_module(f"exercises.phase{phase}.{grader.stem}") for grader in graders]
    found = [one for module in modules for one in vars(module).values() if isinstance(one, Exercise)]
    by_name = {exercise.name: exercise for exercise in found}
    return {name: by_name[name] for name in all_names() if name in by_name}


def find(name: str) -> Exercise:
    """An exercise by its name (p1e1_pairs), its number (1.1 or p1e1), or the beginning of its name.

    Raises:
        LabError: there is none of that name, or there are several.
    """
    found = the_one(name, all_names(), "exercise", ". It is called as its notebook is, without .ipynb.")
    return exercises_of(int(found[1]))[found]
