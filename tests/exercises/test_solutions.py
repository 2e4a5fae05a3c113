"""Every solution notebook: all its cells pass, and its check says so in one box."""

import pytest

from exercises.judging.plain_runs import run_cells
from exercises.judging.sources import all_names, source_of
from exercises.publishing.build_notebooks import build_solution

NAMES = all_names()


SERVES = "p4e6_two_causes"  # its last cell starts the server, and watches it for a while


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.proof) if name == SERVES else name for name in NAMES]
)
def test_a_solution_is_green(name, capsys):
    run_cells(build_solution(source_of(name)), name)  # raises what a cell raises
    assert capsys.readouterr().out.count("✓ Correct") == 1
