"""A student notebook as it is given out waits for its answers; the last hint, typed in, solves it, and goes into the engine."""

import pytest

from exercises.grading import hint
from exercises.judging import boxes
from exercises.judging.plain_runs import run_cells
from exercises.judging.registry import find
from exercises.judging.sources import all_names, source_of
from exercises.publishing.build_notebooks import build_student
from exercises.publishing.commands import waits
from tests.exercises.changed import answers_of, bank_of

NAMES = all_names()


@pytest.mark.parametrize("name", NAMES)
def test_a_student_notebook_waits_and_the_last_hint_solves_it(name, monkeypatch):
    shown = []
    monkeypatch.setattr(boxes, "display", shown.append)
    names, cells = run_cells(build_student(source_of(name)), name, go_on=True)
    failed = [cell for cell in cells if cell["outcome"] == "failed"]
    need = [c for c in cells if {"check", "engine", "gpu"} & set(c["tags"]) and c["outcome"] != "skipped"]
    assert failed == need  # of an answer
    for cell in failed:  # an engine's cell calls the stub, or what the grader says of it
        errors = ("NotAttempted",) if "check" in cell["tags"] else ("NotImplementedError", "NotAttempted")
        assert cell["error"] in errors and waits(cell), cell
    assert [box.state for box in shown] == ["not attempted"]
    hint(name, 4)
    exec(shown[1].parts[0][1], names)  # typed in below the stub
    for cell in cells:
        if cell["tags"] in (["check"], ["engine"]):
            exec(cell["source"], names)
        # Right answers that are written otherwise go into the engine, too.
        for answer in bank_of(name)[0] if "in_your_engine(" in cell["source"] else ():
            exec(cell["source"], names | dict(zip(find(name).asks, answers_of(name, answer), strict=True)))
    assert [box.state for box in shown[2:]] == ["correct"]
