"""Drawn lengths stay in the ranges that the table states."""

import numpy as np
import pytest

from phase3_paged_attention.traffic import PATTERNS


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
