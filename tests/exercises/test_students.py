"""nbval runs every student notebook as it is given out: exactly the checks fail, with "not attempted"."""

import pytest

from exercises.judging.sources import all_names
from exercises.publishing.commands import waits

pytestmark = pytest.mark.timeout(1200)  # the first test waits for all notebooks


@pytest.mark.parametrize("name", all_names())
def test_a_student_notebook_waits_for_its_answers(cells_of, being_worked_in, name):
    if name in being_worked_in:
        pytest.skip("you work in this notebook")
    cells = cells_of("exercises", name)
    failed = [cell for cell in cells if cell["outcome"] == "failed"]
    due = [
        cell
        for cell in cells
        if {"check", "engine", "gpu"} & set(cell["tags"]) and cell["outcome"] != "skipped"
    ]
    assert failed == due
    for cell in failed:
        if "check" in cell["tags"]:
            assert cell["error"] == "NotAttempted" and len(cell["boxes"]) == 1
            assert "Not attempted" in cell["boxes"][0]
        else:  # it calls the stub, or what the grader says of it
            assert cell["error"] in ("NotImplementedError", "NotAttempted") and waits(cell), cell
