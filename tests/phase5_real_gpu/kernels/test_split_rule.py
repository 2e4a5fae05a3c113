"""Into how many splits a context is cut: the rule against a brute-force model of a card."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phase5_real_gpu.kernels import split_rule
from phase5_real_gpu.kernels.split_rule import MOST_SPLITS, choose_splits, programs_that_fit

quick = settings(max_examples=150)
contexts = st.lists(st.integers(0, 6000), min_size=1, max_size=12)
kv_heads = st.sampled_from([1, 2, 3, 4, 8, 12, 32])
resident = st.integers(2, 600)
tiles = st.sampled_from([16, 32, 64, 128])


def splits_of(context_lens, split_tokens):
    """Tokens of each split of each context, empty ones left out."""
    return [min(split_tokens, c - first) for c in context_lens for first in range(0, c, split_tokens)]


def all_times(context_lens, heads, resident, tile):
    """By number of splits: rounds of programs that all take as long as a full split, the rule's own idea, written plainly."""
    times, longest = {}, math.ceil(max(context_lens) / tile)
    for n in range(1, min(longest, MOST_SPLITS) + 1):
        split_tiles = math.ceil(longest / n)
        programs = heads * len(splits_of(context_lens, split_tiles * tile))
        times[n] = math.ceil(programs / resident) * split_tiles
    return times


@given(contexts, kv_heads, resident, tiles)
@quick
def test_each_context_is_covered_once(context_lens, heads, resident, tile):
    splits = choose_splits(context_lens, heads, resident, tile)
    longest = max(context_lens)
    assert splits.split_tokens > 0 and splits.split_tokens % tile == 0
    assert splits.num_splits * splits.split_tokens >= longest  # the kernel's splits reach the last token,
    assert (splits.num_splits - 1) * splits.split_tokens < max(longest, 1)  # and the last split has one
    assert 1 <= splits.num_splits <= min(MOST_SPLITS, max(1, math.ceil(longest / tile)))
    for c in context_lens:
        assert sum(splits_of([c], splits.split_tokens)) == c
        assert len(splits_of([c], splits.split_tokens)) <= splits.num_splits


@given(contexts, kv_heads, resident, tiles)
@quick
def test_the_fewest_splits_that_are_good_enough(context_lens, heads, resident, tile):
    """Against brute force over every number of splits: so work enough is never cut, and no larger card is slower than
    the rule allows."""
    chosen = choose_splits(context_lens, heads, resident, tile).num_splits
    if math.ceil(max(context_lens) / tile) <= 4:
        assert chosen == 1  # so little that merging would cost more than it saves
        return
    times = all_times(context_lens, heads, resident, tile)
    good = [
        n for n, time in times.items() if time * split_rule.GOOD_ENOUGH <= min(times.values()) * (1 + 1e-12)
    ]
    assert chosen == min(good)


@pytest.mark.parametrize(("context_lens", "enough"), [([4096] * 64, 1), ([32768], 4), ([8192] * 4, 1)])
def test_with_the_floor_of_littles_law_few_splits_are_enough(context_lens, enough):
    """28 programs reach the bandwidth, so that no number of splits is faster than all tiles of all heads / 28."""
    _, times = split_rule.split_times(context_lens, 8, 396, 64, saturating=28)
    assert times.argmin() + 1 == enough and times.min() == pytest.approx(sum(context_lens) / 64 * 8 / 28)


@pytest.mark.parametrize("context_lens", [[], [0], [0, 0, 0], [1], [256]])
def test_nothing_to_cut(context_lens):
    splits = choose_splits(context_lens, 8, 264, 64)
    assert splits.num_splits == 1 and splits.split_tokens >= max(context_lens, default=0)


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "card", "fit"),
    [
        (120, 32_768, 4, (228, 2048, 9), 4),  # by registers: 120 x 128 threads
        (168, 65_536, 4, (228, 2048, 9), 3),  # an H100: registers and shared memory both allow 3
        (128, 16_384, 4, (64, 1024, 7), 4),  # a T4 reserves no shared memory
        (32, 0, 8, (228, 2048, 9), 8),  # by threads
        (16, 0, 1, (228, 2048, 9), 32),  # no multiprocessor holds more
        (255, 200_000, 16, (100, 1536, 8), 1),  # what cannot start is the compiler's to refuse
    ],
)
def test_programs_that_fit(registers, shared, warps, card, fit):
    assert programs_that_fit(registers, shared, warps, card[0] * 1024, *card[1:]) == fit
