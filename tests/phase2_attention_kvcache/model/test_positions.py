"""positions.py: its own invariants. (Against transformers, with all scalings, in whole models: test_families.py.)"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase2_attention_kvcache.model.positions import apply_rotary, rotary_frequencies, rotary_tables
from phase2_attention_kvcache.story.positions_story import sinusoidal_table


@given(
    pairs=st.integers(1, 32),
    q_at=st.integers(0, 500),
    k_at=st.integers(0, 500),
    moved=st.integers(0, 3000),
    seed=st.integers(0, 999),
)
@settings(max_examples=60)
def test_scores_depend_on_the_distance_alone(pairs, q_at, k_at, moved, seed):
    q, k = torch.randn(2, 1, 3, 2 * pairs, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    cos, sin = rotary_tables(3501, rotary_frequencies(2 * pairs).double(), torch.float64)

    def score(m, n):
        return (apply_rotary(q, cos[[m]], sin[[m]]) * apply_rotary(k, cos[[n]], sin[[n]])).sum(-1)

    torch.testing.assert_close(score(q_at, k_at), score(q_at + moved, k_at + moved), rtol=1e-9, atol=1e-9)
    # Turning keeps lengths, and position 0 does not turn at all.
    turned = apply_rotary(q, cos[[q_at]], sin[[q_at]])
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))
    assert torch.equal(apply_rotary(q, cos[[0]], sin[[0]]), q)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rotary_frequencies(7), "head_dim is 7"),
        (lambda: rotary_frequencies(0), "head_dim is 0"),
        (lambda: rotary_frequencies(8, 0.0), "theta is 0.0"),
        (lambda: rotary_frequencies(8, math.nan), "theta is nan"),
        (lambda: rotary_frequencies(8, scaling={"rope_type": "longrope", "factor": 2.0}), "'longrope' is not supported"),
        (lambda: rotary_frequencies(8, scaling={"type": "dynamic", "factor": 2.0}), "'dynamic' is not supported"),
    ],
)  # fmt: skip
def test_mistakes_get_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_sinusoidal_follows_the_formula():
    table = sinusoidal_table(50, 12)
    for position in (0, 1, 17, 49):
        for i in range(6):
            angle = position / 10000 ** (2 * i / 12)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)
