"""Sinusoidal and learned positions, and the paper's layout of a rotation, by their formulas."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase2_attention_kvcache.model.positions import apply_rotary, rotary_frequencies, rotary_tables
from phase2_attention_kvcache.other_positions.older_kinds import (
    apply_rotary_interleaved,
    sinusoidal_table,
    to_half_split,
)


@given(pairs=st.integers(1, 20), n=st.integers(1, 6), seed=st.integers(0, 999))
@settings(max_examples=40)
def test_both_layouts_are_the_same_up_to_order(pairs, n, seed):
    x = torch.randn(n, 2, 2 * pairs, generator=torch.Generator().manual_seed(seed))
    cos, sin = rotary_tables(n, rotary_frequencies(2 * pairs))
    order = to_half_split(2 * pairs)
    interleaved = apply_rotary_interleaved(x, cos, sin)
    assert torch.equal(apply_rotary(x[..., order], cos, sin), interleaved[..., order])


def test_interleaved_is_the_papers_rotation():
    """Su et al., section 3.2.1: multiply neighbours, as a complex number, by e^(i m theta_j)."""
    x = torch.randn(5, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    frequencies = rotary_frequencies(8).double()
    cos, sin = rotary_tables(5, frequencies, torch.float64)
    complex_x = torch.view_as_complex(x.view(5, 1, 4, 2))
    angles = torch.outer(torch.arange(5.0).double(), frequencies)
    turn = torch.polar(torch.ones_like(angles), angles)
    expected = torch.view_as_real(complex_x * turn[:, None]).flatten(-2)
    torch.testing.assert_close(apply_rotary_interleaved(x, cos, sin), expected)


def test_sinusoidal_follows_the_formula():
    table = sinusoidal_table(50, 12)
    for position in (0, 1, 17, 49):
        for i in range(6):
            angle = position / 10000 ** (2 * i / 12)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)
