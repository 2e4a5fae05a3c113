"""A student notebook as it is given out waits for its answers; the last hint, typed in, solves it, and goes into the engine."""

import pytest

from exercises.grading import hint
from exercises.judging import boxes
from exercises.judging.plain_runs import run_cells
from exercises.judging.registry import find
from exercises.judging.sources import all_names, source_of
from exercises.publishing.build_notebooks import build_solution, build_student
from exercises.publishing.commands import waits
from tests.exercises.changed import answers_of, bank_of

NAMES = all_names()


def expect_waiting(cells):
    """Exactly the cells that need an answer fail, since there is none."""
    failed = [cell for cell in cells if cell["outcome"] == "failed"]
    due = [c for c in cells if {"check", "engine", "gpu"} & set(c["tags"]) and c["outcome"] != "skipped"]
    assert failed == due
    for cell in failed:  # an engine's cell calls the stub, or what the grader says of it
        errors = ("NotAttempted",) if "check" in cell["tags"] else ("NotImplementedError", "NotAttempted")
        assert cell["error"] in errors and waits(cell), cell


@pytest.mark.parametrize("name", NAMES)
def test_a_student_notebook_waits_and_the_last_hint_solves_it(name, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(boxes, "display", shown.append)
    names, cells = run_cells(build_student(source_of(name)), name, go_on=True)
    expect_waiting(cells)
    assert [box.state for box in shown] == ["not attempted"]
    hint(name, 4)
    exec(shown[1].parts[0][1], names)  # typed in below the stub
    for cell in cells:
        if cell["tags"] in (["check"], ["engine"]):
            exec(cell["source"], names)
    assert [box.state for box in shown[2:]] == ["correct"]
    capsys.readouterr()


IN_YOUR_ENGINE = [name for name in NAMES if "in_your_engine(" in source_of(name).read_text()]
SLOW = {"p1e3_streaming", "p2e6_top_p", "p4e1_one_step", "p4e3_chunks"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.proof] * (name in SLOW)) for name in IN_YOUR_ENGINE]
)
def test_right_answers_that_are_written_otherwise_go_into_the_engine(name, capsys):
    nb = build_solution(source_of(name))
    (engine,) = (cell for cell in nb.cells if cell.metadata.get("tags") == ["engine"])
    nb.cells = [cell for cell in nb.cells if not {"check", "engine"} & set(cell.metadata.get("tags", ()))]
    names, _ = run_cells(nb, name)
    for answer in bank_of(name)[0]:
        exec(engine.source, names | dict(zip(find(name).asks, answers_of(name, answer), strict=True)))
        assert "as with the course's own part" in capsys.readouterr().out
