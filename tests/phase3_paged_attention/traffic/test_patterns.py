"""Drawn lengths stay in the ranges that the table states."""

import numpy as np
import pytest

from phase3_paged_attention.traffic import MIX, PATTERNS


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=lambda p: p.name)
def test_lengths_stay_in_their_range(pattern):
    isl, osl = pattern.draw(np.random.default_rng(1), 5000)
    for lengths, (least, most) in ((isl, pattern.isl), (osl, pattern.osl)):
        assert least >= 1 and lengths.min() >= least and lengths.max() <= most
    total = isl + osl
    # The longest is no exaggeration.
    assert 0.9 * pattern.max_tokens < total.max() <= pattern.max_tokens
    assert (
        pattern.total_lengths(np.random.default_rng(1), 5000) == total
    ).all()  # the same seed, the same draw


@pytest.mark.parametrize("pattern", MIX, ids=lambda p: p.name)
def test_the_articles_patterns_are_drawn_evenly(pattern):
    for lengths, (least, most) in zip(
        pattern.draw(np.random.default_rng(2), 20_000), (pattern.isl, pattern.osl)
    ):
        assert lengths.mean() == pytest.approx((least + most) / 2, rel=0.02)
        assert (lengths.min(), lengths.max()) == pytest.approx((least, most), rel=0.02)


def test_mixed_is_a_third_of_each():
    isl, osl = PATTERNS["mixed"].draw(np.random.default_rng(3), 30_000)
    of = [(isl <= 200) & (osl <= 500), isl >= 2000, osl > 500]
    assert [kind.mean() for kind in of] == pytest.approx([1 / 3] * 3, abs=0.02)
