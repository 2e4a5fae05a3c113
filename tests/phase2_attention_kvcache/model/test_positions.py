"""positions.py against transformers' Llama, the formulas of the papers, and its own invariants."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from phase2_attention_kvcache.model.positions import (
    apply_rotary,
    apply_rotary_interleaved,
    look_up,
    rotary_frequencies,
    rotary_tables,
    sinusoidal_table,
    to_half_split,
)
from phase2_attention_kvcache.story.positions_story import compare_kinds

LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)


def transformers_rotary(head_dim, theta, scaling):
    parameters = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
    sizes = dict(hidden_size=2 * head_dim, num_attention_heads=2, max_position_embeddings=131072)
    return LlamaRotaryEmbedding(LlamaConfig(**sizes, head_dim=head_dim, rope_parameters=parameters))


SCALINGS = [
    (10000.0, None),
    (500000.0, {"rope_type": "default"}),
    (500000.0, {"rope_type": "llama3", **LLAMA3}),
    (500000.0, {"rope_type": "llama3", **LLAMA3, "factor": 32.0}),
    (10000.0, {"rope_type": "linear", "factor": 4.0}),
]


@pytest.mark.parametrize("head_dim", [2, 64, 128])
@pytest.mark.parametrize(("theta", "scaling"), SCALINGS)
def test_frequencies_agree_with_transformers(head_dim, theta, scaling):
    expected = transformers_rotary(head_dim, theta, scaling).inv_freq
    torch.testing.assert_close(rotary_frequencies(head_dim, theta, scaling), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("theta", "scaling"), SCALINGS)
def test_rotation_agrees_with_transformers(theta, scaling, dtype):
    head_dim, positions = 64, torch.tensor([0, 1, 7, 1000, 8191, 100_000])
    torch.manual_seed(0)
    q, k = torch.randn(2, len(positions), 4, head_dim).to(dtype)
    rotary = transformers_rotary(head_dim, theta, scaling)
    cos, sin = rotary(q, positions[None])
    expected_q, expected_k = apply_rotary_pos_emb(q[None], k[None], cos, sin, unsqueeze_dim=2)
    frequencies = rotary_frequencies(head_dim, theta, scaling)
    ours = [t[positions] for t in rotary_tables(100_001, frequencies, dtype)]
    # float32: angles up to 100,000 radians keep about 3 decimals. bfloat16: the same operations, the same roundings.
    tolerance = dict(rtol=1e-5, atol=2e-2 if dtype == torch.float32 else 4e-2)
    torch.testing.assert_close(apply_rotary(q, *ours), expected_q[0], **tolerance)
    torch.testing.assert_close(apply_rotary(k, *ours), expected_k[0], **tolerance)
    near = slice(0, 4)
    torch.testing.assert_close(apply_rotary(q, *ours)[near], expected_q[0][near], rtol=1e-4, atol=1e-3)
    assert apply_rotary(q, *ours).dtype == dtype


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


def test_heads_turn_alike_and_input_stays():
    x = torch.randn(3, 1, 8).expand(3, 4, 8).contiguous()
    kept = x.clone()
    cos, sin = rotary_tables(3, rotary_frequencies(8))
    out = apply_rotary(x, cos, sin)
    assert torch.equal(out, out[:, :1].expand_as(out))
    assert torch.equal(x, kept)


# ---------------------------------------------------------------------- sinusoidal and learned


def test_sinusoidal_follows_the_formula():
    table = sinusoidal_table(50, 12)
    for position in (0, 1, 17, 49):
        for i in range(6):
            angle = position / 10000 ** (2 * i / 12)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_sinusoidal_rows_know_distances():
    """p(m) . p(n) depends on m - n alone: every Toeplitz diagonal of the table times itself is constant."""
    products = sinusoidal_table(40, 32).double() @ sinusoidal_table(40, 32).double().T
    for distance in range(40):
        diagonal = torch.diagonal(products, distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-4)


def test_look_up():
    table = torch.arange(8.0).view(4, 2)
    assert torch.equal(look_up(table, torch.tensor([3, 0, 3])), table[[3, 0, 3]])
    for bad in (4, -1):
        with pytest.raises(ValueError, match=f"position {bad} is outside the table of 4"):
            look_up(table, torch.tensor([0, bad]))


def test_only_rotary_ignores_the_place():
    scores = compare_kinds(seed=3, num_places=16)
    assert scores["rotary"].std(0).max() < 1e-9
    assert scores["rotary"].std(1).min() > 0.01
    for kind in ("learned", "sinusoidal"):
        assert scores[kind].shape == scores["rotary"].shape == (16, 65)
        assert scores[kind].std(0).min() > 0.01


# ---------------------------------------------------------------------- mistakes


def scaled(**scaling):
    return rotary_frequencies(8, scaling=scaling)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rotary_frequencies(7), "head_dim is 7"),
        (lambda: rotary_frequencies(0), "head_dim is 0"),
        (lambda: rotary_frequencies(8, 0.0), "theta is 0.0"),
        (lambda: rotary_frequencies(8, math.nan), "theta is nan"),
        (lambda: scaled(rope_type="longrope", factor=2.0), "'longrope' is not supported"),
        (lambda: scaled(rope_type="yarn", factor=2.0), "needs original_max_position_embeddings above 0, got None"),
        (lambda: scaled(type="dynamic", factor=2.0), "'dynamic' is not supported"),
        (lambda: scaled(rope_type="linear"), "needs factor above 0, got None"),
        (lambda: scaled(type="linear", factor=0), "needs factor above 0, got 0"),
        (lambda: scaled(rope_type="llama3", factor=8.0), "needs low_freq_factor above 0"),
        (lambda: scaled(**SCALINGS[2][1] | {"high_freq_factor": 1.0}), "low_freq_factor 1.0 must be below"),
        (lambda: scaled(rope_type="default", rope_theta=5e5),
         "theta is 10000.0, but the scaling says rope_theta 500000.0"),
        (lambda: scaled(rope_type="default", partial_rotary_factor=0.5),
         "partial_rotary_factor 0.5 is not supported"),
        (lambda: sinusoidal_table(0, 8), "num_positions is 0"),
        (lambda: sinusoidal_table(4, 5), "d_model is 5"),
    ],
)  # fmt: skip
def test_mistakes_get_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
