"""Layers with fewer kernels: each kernel against float64, and what `fuse` replaces."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase2_attention_kvcache.model.layers import SwiGLUMLP
from phase2_attention_kvcache.model.positions import apply_rotary
from phase2_attention_kvcache.model.transformer import Transformer
from phase5_real_gpu.fused.fused_layers import FusedAttention, FusedSwiGLU, fuse, gated
from phase5_real_gpu.fused.store_kernel import store
from tests.phase5_real_gpu.conftest import DTYPES
from tests.properties import unshrunk

pytest.importorskip("triton")

# bfloat16 is cut off in the interpreter.
ROUNDING = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-7}


@given(
    tokens=st.integers(1, 5),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 9),
    dim=st.sampled_from([16, 40, 64, 80, 96, 128, 256]),
    block_size=st.sampled_from([1, 8, 16, 24]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**31),
)
@settings(unshrunk, max_examples=25)
def test_turned_and_stored(lab, tokens, dtype, seed, **shape):
    case = lab.Case([tokens, 1], [tokens + 20, 1], dtype=dtype, seed=seed, **shape)
    before, slots = lab.bits(case.data).clone(), case.new_slots
    slots[0] = -1  # a row of padding
    n, heads, kv = tokens + 1, shape["kv_heads"] * shape["group"], shape["kv_heads"]
    generator = torch.Generator().manual_seed(seed)
    # As the model has them: parts of one tensor.
    qkv = torch.randn(n, heads + 2 * kv, shape["dim"], generator=generator).to(dtype).to(lab.device)
    turns = 100 * torch.rand(n, shape["dim"] // 2, generator=generator).to(lab.device)
    angles = turns.cos(), turns.sin()
    wanted = apply_rotary(qkv[:, : heads + kv].double(), *(a.double() for a in angles))
    q, k, v = qkv.split([heads, kv, kv], dim=1)
    k_was, v_was = k.clone(), v.clone()
    store(k, v, case.k_cache, case.v_cache, slots, q=q, angles=angles)
    near = dict(rtol=ROUNDING[dtype], atol=ROUNDING[dtype])
    torch.testing.assert_close(q.double(), wanted[:, :heads], **near)
    assert torch.equal(k, k_was) and torch.equal(v, v_was)
    stored = [cache.reshape(-1, kv, shape["dim"])[slots[1:]] for cache in (case.k_cache, case.v_cache)]
    torch.testing.assert_close(stored[0].double(), wanted[1:, heads:], **near)
    assert torch.equal(stored[1], v[1:])
    changed = (lab.bits(case.data) != before).any(-1).any(-1).sum().item()
    assert changed == 2 * tokens  # keys and values; and nothing else in the memory


def test_what_does_not_fit(lab):
    case = lab.Case([3], [3], dim=32)
    k, v = (case.new(given) for given in case.given)
    cos = torch.zeros(3, 32)
    with pytest.raises(ValueError, match=r"cos has shape \[3, 32\]: give \[3, 32 / 2\]"):
        store(k, v, case.k_cache, case.v_cache, case.new_slots, q=case.q, angles=(cos, cos))


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated(lab, dtype, gelu):
    both = (4 * torch.randn(3, 2 * 1100, generator=torch.Generator().manual_seed(1))).to(dtype).to(lab.device)
    both[0, :6] = torch.tensor([0.0, -0.0, 80.0, -80.0, 1e4, -1e4])
    gate, up = both.double().chunk(2, dim=-1)
    act = torch.nn.functional.gelu(gate, approximate="tanh") if gelu else torch.nn.functional.silu(gate)
    torch.testing.assert_close(gated(both, gelu).double(), act * up, rtol=2 * ROUNDING[dtype], atol=1e-6)
    assert gated(both[:0]).shape == (0, 1100)


def test_what_may_do_more_stays_as_it_is(lab):
    class Watched(SwiGLUMLP):
        pass

    model = Transformer.random(lab.model_config(2, 1, 16, 2))
    model.blocks[0].mlp.__class__ = Watched
    blocks = fuse(model).blocks
    assert type(blocks[0].mlp) is Watched and type(blocks[1].mlp) is FusedSwiGLU
    gpt2 = Transformer.random(
        lab.model_config(1, 1, 16, 1, family="gpt2", attention_bias=True, mlp_bias=True)
    )
    assert {type(b.attention) for b in fuse(gpt2).blocks} == {FusedAttention}
    assert fuse(model.final_norm) is model.final_norm
