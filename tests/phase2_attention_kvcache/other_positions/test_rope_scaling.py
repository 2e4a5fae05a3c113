"""Rotations, plain and scaled, against transformers' Llama."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from phase2_attention_kvcache.model.positions import apply_rotary, rotary_frequencies, rotary_tables

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


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (dict(rope_type="yarn", factor=2.0), "needs original_max_position_embeddings above 0, got None"),
        (dict(rope_type="linear"), "needs factor above 0, got None"),
        (dict(type="linear", factor=0), "needs factor above 0, got 0"),
        (dict(rope_type="llama3", factor=8.0), "needs low_freq_factor above 0"),
        (SCALINGS[2][1] | {"high_freq_factor": 1.0}, "low_freq_factor 1.0 must be below"),
    ],
)
def test_mistakes_get_one_clear_line(scaling, message):
    with pytest.raises(ValueError, match=message) as error:
        rotary_frequencies(8, scaling=scaling)
    assert "\n" not in str(error.value)
