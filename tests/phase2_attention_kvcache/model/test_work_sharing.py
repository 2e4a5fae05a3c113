"""Counters that threads share give each its own number, and a part has one publisher."""

import numpy as np
import pytest

pytest.importorskip("numba")

from phase2_attention_kvcache.model.work_sharing import claim, fetch_add, new_board, next_part, note_published

from numba import njit, prange  # isort: skip (torch before numba)


@njit(parallel=True)
def count_together(counter, seen, threads, each):
    for thread in prange(threads):
        for _ in range(each):
            seen[fetch_add(counter, 1, 2, 1)] = thread


def test_no_number_is_given_twice():
    counter, seen = np.zeros((2, 3), np.int32), np.full(40_000, -1)
    count_together(counter, seen, 4, 10_000)
    assert counter.tolist() == [[0, 0, 0], [0, 0, 40_000]]
    assert np.bincount(seen).tolist() == [10_000] * 4


def test_parts_of_a_phase():
    board = new_board([1, 3])
    assert [next_part(board, 1) for _ in range(3)] == [0, 1, 2]
    assert next_part(board, 0) == 0
    for part in (0, 2):
        assert claim(board, 1, part)
        note_published(board, 1)
    assert next_part(board, 1) == 1  # once more: whoever took it has not published it
    assert claim(board, 1, 1)
    assert not claim(board, 1, 1)  # a latecomer's result is thrown away
    note_published(board, 1)
    assert next_part(board, 1) == -1
