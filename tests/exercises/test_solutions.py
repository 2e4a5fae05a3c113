"""nbval runs every solution notebook: all its cells pass."""

import pytest

from exercises.judging.sources import all_names

pytestmark = pytest.mark.timeout(1200)  # the first test waits for all notebooks


@pytest.mark.parametrize("name", all_names())
def test_a_solution_is_green(cells_of, name):
    cells = cells_of("solutions", name)
    assert [cell for cell in cells if cell["outcome"] == "failed"] == []
    assert any(cell["tags"] == ["check"] for cell in cells)
