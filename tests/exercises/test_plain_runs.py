"""Notebook cells run as plain Python."""

import pytest

from exercises.judging.plain_runs import without_magic


@pytest.mark.parametrize(
    ("cell", "python"),
    [
        ("%timeit f()\nx = 1\n", "pass\nx = 1\n"),
        ("%%time\nx = 1\n", "x = 1\n"),
        ("x = (7\n  % 4)\n", "x = (7\n  % 4)\n"),
        ("!ls\nx = (7\n  % 4)\n", "pass\nx = (7\n  % 4)\n"),
        ("files = !ls\n", "pass\n"),
        ("def f(:\n", "def f(:\n"),
    ],
)
def test_magics_are_taken_out_and_arithmetic_stays(cell, python):
    assert without_magic(cell) == python
