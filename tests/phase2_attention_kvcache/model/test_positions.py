"""positions.py: its own invariants. (Against transformers, with all scalings: other_positions/test_rope_scaling.py.)"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase2_attention_kvcache.model.positions import apply_rotary, rotary_frequencies, rotary_tables


def test_tables_are_computed_in_float32():
    cos, sin = rotary_tables(2000, rotary_frequencies(8), torch.bfloat16)
    assert cos.dtype == sin.dtype == torch.bfloat16
    assert cos.shape == sin.shape == (2000, 4)
    exact = np.outer(np.arange(2000.0), rotary_frequencies(8).double().numpy())
    np.testing.assert_allclose(cos.double().numpy(), np.cos(exact), atol=4e-3)
    np.testing.assert_allclose(sin.double().numpy(), np.sin(exact), atol=4e-3)


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


def test_scores_do_depend_on_the_distance():
    q = torch.ones(1, 1, 64)
    cos, sin = rotary_tables(10, rotary_frequencies(64))
    scores = {n: (q * apply_rotary(q, cos[[n]], sin[[n]])).sum().item() for n in range(10)}
    assert scores[0] == pytest.approx(64)
    assert all(scores[n] < 63 for n in range(1, 10))


def test_heads_turn_alike_and_input_stays():
    x = torch.randn(3, 1, 8).expand(3, 4, 8).contiguous()
    kept = x.clone()
    cos, sin = rotary_tables(3, rotary_frequencies(8))
    out = apply_rotary(x, cos, sin)
    assert torch.equal(out, out[:, :1].expand_as(out))
    assert torch.equal(x, kept)


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
