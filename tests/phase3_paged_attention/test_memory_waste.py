"""Waste and concurrency: the real block manager against sums, and rows against a bitmap."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phase3_paged_attention.story.memory_policies import (
    ContiguousAllocator,
    requests_that_fit,
    rows_that_fit,
    simulate,
)
from phase3_paged_attention.story.memory_waste_figures import physical_memory
from phase3_paged_attention.story.memory_waste_story import chance_of_waste, slots_allocated
from phase3_paged_attention.traffic import PATTERNS, TrafficPattern


@given(lengths=st.lists(st.integers(1, 600), min_size=1, max_size=12), size=st.integers(1, 64))
@settings(max_examples=60)
def test_paged_waste_is_under_one_block_a_request(lengths, size):
    waste = slots_allocated(lengths, size) - sum(lengths)
    assert 0 <= waste <= len(lengths) * (size - 1)
    assert waste == sum(-n % size for n in lengths)


@pytest.mark.parametrize(("at_most", "requests", "size"), [(0, 1, 4), (3, 2, 4), (5, 3, 5), (100, 3, 3)])
def test_chance_of_waste_counts_rolls_of_dice(at_most, requests, size):
    rolls = list(itertools.product(range(size), repeat=requests))
    expected = sum(sum(roll) <= at_most for roll in rolls) / len(rolls)
    assert chance_of_waste(at_most, requests, size) == pytest.approx(expected)


@given(lengths=st.lists(st.integers(1, 100), min_size=1, max_size=30), size=st.integers(1, 32),
       num_blocks=st.integers(1, 60))  # fmt: skip
@settings(max_examples=80)
def test_requests_that_fit_are_those_whose_blocks_fit(lengths, size, num_blocks):
    needed = np.cumsum([-(-n // size) for n in lengths])
    expected = int((needed <= num_blocks).sum())
    if expected == len(lengths):
        with pytest.raises(ValueError, match="give more of them"):
            requests_that_fit(lengths, num_blocks, size)
    else:
        assert requests_that_fit(lengths, num_blocks, size) == expected


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


def test_rows_that_fit():
    assert [rows_that_fit(8192, row) for row in (2048, 8192, 8193, 1000)] == [4, 1, 0, 8]


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


def test_paged_holds_more_tokens_than_an_oracle_with_rows():
    pattern = PATTERNS["chat"]
    by = {p: simulate(p, pattern, 8192, np.random.default_rng(3), 600)
          for p in ("longest", "power of 2", "oracle", "paged")}  # fmt: skip
    used = [s.used for s in by.values()]
    assert used == sorted(used) and by["paged"].used > 0.9
    assert by["oracle"].internal == 0 and by["paged"].running > by["oracle"].running
    for s in by.values():
        assert min(s.used, s.reserved, s.internal, s.external) >= 0
        assert s.used + s.reserved + s.internal + s.external == pytest.approx(1)
    assert by["paged"].reserved + by["paged"].internal <= by["paged"].running * 15 / 8192


def test_the_picture_shows_every_token_once():
    lengths = [300, 17, 1, 16, 500]
    contiguous, paged = physical_memory(lengths, 2 * 2048, seed=1)
    for i, n in enumerate(lengths):
        assert (paged == i + 1).sum() == n
        assert (paged == -(i + 1)).sum() == -n % 16
        owners = np.abs(paged.reshape(-1, 16))
        assert ((owners == i + 1).all(axis=1) | (owners != i + 1).all(axis=1)).all()  # whole blocks
    assert (contiguous == 1).sum() == 300 and (contiguous == 2).sum() == 17 and contiguous.max() == 2
    assert (np.abs(contiguous) > 0).all()
    with pytest.raises(ValueError, match="do not fit"):
        physical_memory([300, 300], 512)
