"""Whether an answer is the solution, or somebody else's."""

import pytest

from exercises.classroom import copies
from exercises.judging.sources import source_of
from exercises.publishing.build_notebooks import build_student
from tests.exercises.classroom.handed_in import MERGE


def test_trivial_answers_are_no_copies():
    stub = next(
        c for c in build_student(source_of("p1e1_pairs")).cells if c.metadata.get("tags") == ["answer"]
    )
    for cell in (stub.source, "def merge(tokens, pair, new_id):\n    return tokens\n"):
        assert copies.shapes_of("p1e1_pairs", [cell]) == {}
    assert list(copies.shapes_of("p1e1_pairs", [MERGE])) == ["merge"]


@pytest.mark.parametrize("cell", ["(" * 10_000, "-" * 10_000 + "1", "1" + "+1" * 10_000, "\0"])
def test_what_no_parser_can_read_ends_nothing(cell):
    assert copies.shapes_of("p1e1_pairs", [cell]) == {}
