"""Every solution notebook: all its cells pass, and its check says so in one box."""

import pytest

from exercises.judging.plain_runs import run_cells
from exercises.judging.sources import all_names, source_of
from exercises.publishing.build_notebooks import build_solution


@pytest.mark.parametrize("name", all_names())
def test_a_solution_is_green(name, capsys):
    run_cells(build_solution(source_of(name)), name)  # raises what a cell raises
    assert capsys.readouterr().out.count("✓ Correct") == 1
