"""Rotations far out, plain and scaled, against transformers; model/test_families.py has them in whole models, near the start."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from phase2_attention_kvcache.model.positions import apply_rotary, rotary_frequencies, rotary_tables

LLAMA3 = dict(rope_type="llama3", factor=8.0, high_freq_factor=1.0, original_max_position_embeddings=8192)
SCALED = [
    (500000.0, LLAMA3 | dict(low_freq_factor=1.0, high_freq_factor=4.0)),
    (10000.0, dict(rope_type="linear", factor=4.0)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("theta", "scaling"), [(10000.0, None), *SCALED])
def test_rotations_agree_with_transformers_up_to_position_100_000(theta, scaling, dtype):
    positions = torch.tensor([0, 1, 7, 1000, 8191, 100_000])
    q = torch.randn(len(positions), 4, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    parameters = dict(rope_theta=theta, **(scaling or dict(rope_type="default")))
    rotary = LlamaRotaryEmbedding(
        LlamaConfig(head_dim=64, max_position_embeddings=131072, rope_parameters=parameters)
    )
    expected, _ = apply_rotary_pos_emb(q[None], q[None], *rotary(q, positions[None]), unsqueeze_dim=2)
    tables = rotary_tables(100_001, rotary_frequencies(64, theta, scaling), dtype)
    ours = apply_rotary(q, *(table[positions] for table in tables))
    # float32: angles up to 100,000 radians keep about 3 decimals. bfloat16: the same operations, the same roundings.
    torch.testing.assert_close(ours, expected[0], rtol=1e-5, atol=2e-2 if dtype == torch.float32 else 4e-2)
    torch.testing.assert_close(ours[:4], expected[0][:4], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (dict(rope_type="yarn", factor=2.0), "needs original_max_position_embeddings above 0, got None"),
        (dict(rope_type="linear"), "needs factor above 0, got None"),
        (dict(type="linear", factor=0), "needs factor above 0, got 0"),
        (LLAMA3, "needs low_freq_factor above 0"),
        (LLAMA3 | {"low_freq_factor": 1.0}, "low_freq_factor 1.0 must be below"),
    ],
)
def test_mistakes_get_one_clear_line(scaling, message):
    with pytest.raises(ValueError, match=message) as error:
        rotary_frequencies(8, scaling=scaling)
    assert "\n" not in str(error.value)
