"""Waste and concurrency: the real block manager against sums, and rows against a bitmap."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phase3_paged_attention.story.memory_policies import ContiguousAllocator, simulate
from phase3_paged_attention.traffic import TrafficPattern


@given(st.data())
@settings(max_examples=60)
def test_first_fit_against_a_bitmap(data):
    slots = data.draw(st.integers(1, 40))
    allocator, taken, rows = ContiguousAllocator(slots), [False] * slots, []
    for _ in range(data.draw(st.integers(1, 25))):
        if rows and data.draw(st.booleans()):
            start, size = rows.pop(data.draw(st.integers(0, len(rows) - 1)))
            allocator.free(start, size)
            taken[start : start + size] = [False] * size
        else:
            size = data.draw(st.integers(1, 15))
            fits = [i for i in range(slots - size + 1) if not any(taken[i : i + size])]
            start = allocator.allocate(size)
            assert start == (fits[0] if fits else None)
            if fits:
                rows.append((start, size))
                taken[start : start + size] = [True] * size
        assert allocator.num_free == taken.count(False)


def always(prompt, answer, longest):
    def draw(rng, n):
        return np.full(n, prompt), np.full(n, answer)

    return TrafficPattern("always the same", (prompt, prompt), (answer, answer), longest, draw)


@pytest.mark.parametrize(("policy", "row"), [("oracle", 160), ("power of 2", 160), ("longest", 200)])
def test_shares_of_equal_requests_follow_from_their_lengths(policy, row):
    """Prompt 32, answer 128: all come together, and on the average 32 + 64.5 tokens are there."""
    shares = simulate(policy, always(32, 128, 200), 10 * row + 7, np.random.default_rng(0), steps=1280)
    slots = 10 * row + 7
    assert shares.running == 10
    assert shares.used == pytest.approx(10 * 96.5 / slots)
    assert shares.reserved == pytest.approx(10 * (160 - 96.5) / slots)
    assert shares.internal == pytest.approx(10 * (row - 160) / slots)
    assert shares.external == pytest.approx(7 / slots)
