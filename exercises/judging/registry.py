"""All exercises, gathered from exercises/phaseN/graders.py.

`find(name)` imports the graders of one phase only, so that a check in a notebook does not wait for the others;
`EXERCISES` is all of them, in the order of the course.
"""

from __future__ import annotations

import difflib
import importlib
import re
from functools import cache
from pathlib import Path

from exercises.judging.verdict import Exercise, WrongCall

HERE = Path(__file__).resolve().parents[1]
EXERCISES: dict[str, Exercise]


@cache
def exercises_of(phase: int) -> dict[str, Exercise]:
    """The exercises of one phase, by name."""
    if not (HERE / f"phase{phase}" / "graders.py").is_file():
        return {}
    found = importlib.import_module(f"exercises.phase{phase}.graders").EXERCISES
    names = [e.name for e in found]
    if twice := {n for n in names if names.count(n) > 1}:
        raise ValueError(f"two exercises of phase {phase} have one name: {', '.join(sorted(twice))}")
    return {e.name: e for e in found}


@cache
def _all() -> dict[str, Exercise]:
    return {name: e for phase in phases() for name, e in exercises_of(phase).items()}


def phases() -> list[int]:
    """The phases that have graders."""
    found = (re.fullmatch(r"phase(\d+)", p.parent.name) for p in HERE.glob("phase*/graders.py"))
    return sorted(int(m[1]) for m in found if m)


def find(name: str) -> Exercise:
    """An exercise by its name (p1e1_pairs), or by the beginning of its name (p1e1).

    Raises:
        WrongCall: there is none of that name, or there are several.
    """
    number = re.match(r"p(\d+)", name)
    exercises = exercises_of(int(number[1])) if number else {}
    found = [name] if name in exercises else [n for n in exercises if n.startswith(name)]
    if len(found) == 1:
        return exercises[found[0]]
    if found:
        raise WrongCall(f"{name!r} is the beginning of {len(found)} exercises: {', '.join(found)}")
    from exercises.judging.sources import all_names

    names = all_names()
    if name in names:
        raise WrongCall(f"exercise {name!r} has no grader in exercises/phase{name[1]}/graders.py")
    near = difflib.get_close_matches(name, names, 1, 0.6)
    raise WrongCall(
        f"no exercise is called {name!r}"
        + (f": did you mean {near[0]}?" if near else ". It is called as its notebook is, without .ipynb.")
    )


def __getattr__(name: str) -> dict[str, Exercise]:
    if name == "EXERCISES":
        return _all()
    raise AttributeError(name)
