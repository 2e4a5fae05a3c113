"""Tiny exercises for the tests of the framework, and how tests read what a check shows."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from exercises.grading import Exercise, NotYet, expect_equal, guard
from exercises.judging import registry
from exercises.judging.sources import all_names
from exercises.publishing.build_notebooks import NOTEBOOKS, companions
from exercises.publishing.nbval_report import NEEDS_GPU
from exercises.publishing.nbval_runs import run_nbval


def grade_add(add: Callable[[int, int], int]) -> str:
    for a, b in ((1, 2), (5, 5), (-3, 3)):
        out = guard(add, a, b)
        if out == a - b != a + b:
            raise NotYet("subtracts", "You take `b` away.", f"add({a}, {b})", out, a + b)
        expect_equal(out, a + b, f"add({a}, {b})")
    return "three sums"


ADD = Exercise(
    "p1t1_add",
    ("add",),
    grade_add,
    ("What does + do?", "a + b", "take a\n  put b to it"),
    "1.0 Add <two> numbers",
    seconds=30.0,
)


# The notebooks that are run in Jupyter as well. (Without Jupyter all are run, waiting and solved.)
ONE_A_PHASE = [next(n for n in all_names() if n.startswith(f"p{phase}e")) for phase in range(1, 6)]


@pytest.fixture
def course(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exercise], Exercise]:
    """Makes an exercise known to check() and hint(), for one test."""

    def add(exercise: Exercise) -> Exercise:
        known = registry.find
        monkeypatch.setattr(registry, "find", lambda name: exercise if name == exercise.name else known(name))
        return exercise

    return add


@pytest.fixture
def adding(course: Callable[[Exercise], Exercise]) -> Exercise:
    """The exercise p1t1_add: one function that adds two numbers."""
    return course(ADD)


@pytest.fixture(scope="session")
def cells_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], list[dict[str, Any]]]:
    """cells_of("solutions", name): what came out of the cells of a notebook that nbval ran.

    All these notebooks of a folder run in one go, at the first question. Each kind is asked for in a test file of its own, so
    that `pytest -n auto --dist loadfile` gives them to several processes.
    """

    @cache
    def run(kind: str) -> dict[str, list[dict[str, Any]]]:
        if kind == "companions":
            paths = companions()
        else:
            paths = [NOTEBOOKS / kind / f"{name}.ipynb" for name in ONE_A_PHASE]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("INFERENCE_LAB_OUTPUTS", str(tmp_path_factory.mktemp(kind)))
            for threads in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):  # another process has the other core
                patch.setenv(threads, "1")
            cells, printed = run_nbval([path for path in paths if path.is_file()])
        assert cells, printed
        found: dict[str, list[dict[str, Any]]] = {}
        for cell in cells:
            if cell["outcome"] == "skipped":
                assert "gpu" in cell["tags"] and NEEDS_GPU in cell["reason"]
            found.setdefault(Path(cell["notebook"]).stem, []).append(cell)
        return found

    def cells(kind: str, name: str) -> list[dict[str, Any]]:
        assert name in run(kind), "this notebook is missing: make notebooks"
        return run(kind)[name]

    return cells
