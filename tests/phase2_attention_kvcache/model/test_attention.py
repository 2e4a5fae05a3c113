"""attention.py against PyTorch's kernel, float64 arithmetic, and transformers' GPT-2."""

import math

import numpy as np
import pytest
import torch

from phase2_attention_kvcache.model import Transformer
from phase2_attention_kvcache.model.attention import attention, attention_weights
from phase2_attention_kvcache.story.attention_in_models import after_copies, head_habits
from phase2_attention_kvcache.story.heads_at_work import weights_of
from phase2_attention_kvcache.story.small_families import write_small_model
from tests.properties import plain_attention


def random_qkv(n, older, kv_heads, group, head_dim, seed, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(n, kv_heads * group, head_dim, generator=g, dtype=torch.float64)
    k, v = torch.randn(2, n + older, kv_heads, head_dim, generator=g, dtype=torch.float64)
    return q.to(dtype), k.to(dtype), v.to(dtype)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_future_key_is_harmless_and_a_broken_future_value_is_not(bad):
    q, k, v = random_qkv(4, 0, 1, 2, 8, 0)
    before = attention(q, k, v)[:3]
    k[3] = bad
    assert torch.equal(attention(q, k, v)[:3], before)
    v[3] = bad
    assert attention(q, k, v)[:3].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_number_formats(dtype):
    q, k, v = random_qkv(5, 3, 2, 3, 16, 1, dtype)
    out = attention(q, k, v)
    assert out.dtype == dtype
    expected = plain_attention(q, k, v)
    np.testing.assert_allclose(
        out.double().numpy(), expected.numpy(), rtol=torch.finfo(dtype).eps * 4, atol=1e-4
    )
    # The softmax itself is at least float32.
    assert attention_weights(q, k).dtype == torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        ((2, 4, 8), (2, 3, 8), (2, 3, 8), "4 query heads cannot share 3"),
        ((2, 4, 8), (2, 0, 8), (2, 0, 8), "cannot share 0"),
        ((2, 4, 8), (2, 2, 4), (2, 2, 4), "head_dim"),
        ((2, 4, 8), (2, 2, 8), (3, 2, 8), "every key needs one value"),
        ((2, 4, 8), (2, 2, 8), (2, 2, 4), "every key needs one value"),
        ((2, 8), (2, 2, 8), (2, 2, 8), r"\[tokens, heads, head_dim\]"),
        ((3, 4, 8), (2, 2, 8), (2, 2, 8), "3 queries but only 2 keys"),
    ],
)
def test_mistakes_get_one_clear_line(q, k, v, message):
    with pytest.raises(ValueError, match=message) as error:
        attention(torch.zeros(q), torch.zeros(k), torch.zeros(v))
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------- models


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_weights_of_heads_are_what_transformers_computes(family, tmp_path):
    """With shared heads, windows and soft caps, too."""
    theirs = write_small_model(family, tmp_path)
    ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    ours = weights_of(Transformer.from_pretrained(tmp_path), ids)
    with torch.no_grad():
        expected = theirs(torch.tensor([ids]), output_attentions=True).attentions
    assert len(ours) == 4
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b[0], atol=1e-5, rtol=1e-4)


def test_head_habits():
    n = 4
    previous = torch.eye(n).roll(-1, dims=1)  # row i looks at i - 1 ...
    previous[0] = torch.eye(n)[0]  # ... but the first can only look at itself
    itself, first = torch.eye(n), torch.eye(n)[[0] * n]
    habits = head_habits(torch.stack((previous, itself, first)))
    assert habits["previous"].tolist() == pytest.approx([1, 0, 1 / 3])
    assert habits["itself"].tolist() == pytest.approx([0, 1, 0])
    assert habits["first"].tolist() == pytest.approx([1 / 3, 0, 1])
    evenly = attention_weights(torch.zeros(n, 1, 2), torch.zeros(n, 1, 2))
    habits = head_habits(evenly)
    assert habits["previous"].item() == pytest.approx(habits["even"].item())


def test_an_induction_head_looks_at_what_followed_a_copy():
    weights = torch.zeros(2, 4, 4)
    weights[0, 3, 1] = 1.0  # head 0: the second 7 looks at 8, which followed the first one
    weights[1, 3, 2] = 1.0
    assert after_copies(weights, [7, 8, 9, 7]).tolist() == [1, 0]
    assert after_copies(weights, [6, 7, 8, 9]).tolist() == [0, 0]
