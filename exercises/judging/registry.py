"""All exercises, gathered from exercises/phaseN/graders.py and exercises/phaseN/hints.txt."""

import difflib
import importlib
import re
from dataclasses import replace
from functools import cache

from exercises.judging.sources import SOURCES, all_names, meant_by
from exercises.judging.verdict import Exercise, WrongCall


@cache
def exercises_of(phase: int) -> dict[str, Exercise]:
    """The exercises of one phase, by name: a check in a notebook does not wait for the other phases' graders."""
    folder = SOURCES / f"phase{phase}"
    if not folder.is_dir():
        return {}
    hints = read_hints((folder / "hints.txt").read_text(encoding="utf-8"))
    found = importlib.import_module(f"exercises.phase{phase}.graders").EXERCISES
    return {e.name: replace(e, hints=hints[e.name]) for e in found}


def read_hints(text: str) -> dict[str, tuple[str, ...]]:
    """The hints by exercise. Above each exercise stands `# its name`, above each of its hints `## which one it is`."""
    _, *parts = re.split(r"^# (\w+)\n", text, flags=re.MULTILINE)
    return {
        name: tuple(hint.strip("\n") for hint in re.split(r"^## .*\n", hints, flags=re.MULTILINE)[1:])
        for name, hints in zip(parts[::2], parts[1::2])
    }


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
