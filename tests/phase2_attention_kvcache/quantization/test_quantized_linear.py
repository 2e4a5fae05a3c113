"""Weights in few bits: what is stored, how far off it is, and that a layer computes with exactly what it stores."""

import pytest
import torch
from torch import nn

from phase1_tokens_embeddings.weights.ggml_blocks import unpack_nibbles
from phase2_attention_kvcache.measuring.evaluation import bits_per_byte
from phase2_attention_kvcache.model import NoCache, Transformer
from phase2_attention_kvcache.model.config import ModelConfig
from phase2_attention_kvcache.quantization.gptq import gptq_int4, quantize_model_gptq
from phase2_attention_kvcache.quantization.quantized_formats import METHODS, find_method, quantize_int4
from phase2_attention_kvcache.quantization.quantized_linear import (
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedWeight,
    quantize_model,
    weight_bytes_of,
)

BITS = {"int8": 8 + 32 / 512, "fp8": 8 + 32 / 512, "q8_0": 8.5, "q4_0": 4.5, "int4": 4.75}
SMALL = ModelConfig("small", "llama", 64, 64, 2, 4, 2, 16, 96, 128, tied=False)


def random_weight(rows=96, width=512, seed=0):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 0.05


@pytest.mark.parametrize("method", METHODS)
def test_bits_and_error_of_every_format(method):
    weight = random_weight()
    stored = QuantizedWeight.of(weight, method)
    assert stored.shape == (96, 512) and 8 * stored.nbytes / weight.numel() == BITS[method]
    error = (stored.rows(slice(None)) - weight).norm() / weight.norm()
    low, high = {"int8": (0.005, 0.01), "fp8": (0.02, 0.03), "q8_0": (0.003, 0.006)}.get(method, (0.06, 0.1))
    assert low < error < high
    assert torch.equal(stored.rows(torch.tensor([5, 2])), stored.rows(slice(None))[[5, 2]])


@pytest.mark.parametrize("method", METHODS)
def test_zeros_large_and_small_rows(method):
    weight = random_weight()
    weight[0], weight[1], weight[2, :32] = 0, weight[1] * 1e-3, 0
    weight[3] = weight[3].abs() + 0.1  # far from 0, all of one sign
    back = QuantizedWeight.of(weight, method).rows(slice(None))
    assert not back[0].any() and not back[2, :32].any() and back.isfinite().all()
    assert (back[1] - weight[1]).norm() < 0.5 * weight[1].norm()  # by its own scale, not by its neighbours'


def test_zero_points_halve_the_step_of_weights_on_one_side():
    weight = random_weight().abs()
    step = {
        m: (QuantizedWeight.of(weight, m).rows(slice(None)) - weight).abs().max() for m in ("q4_0", "int4")
    }
    assert step["int4"] < 0.65 * step["q4_0"]
    planes = quantize_int4(weight)
    assert not planes["zeros"].any() and unpack_nibbles(planes["codes"]).max() == 15


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_computes_with_the_weights_that_it_stores(method, bias, monkeypatch):
    monkeypatch.setattr(
        "phase2_attention_kvcache.quantization.quantized_linear.QuantizedLinear.tile", 5000
    )  # many tiles, a last short one
    parts = [QuantizedWeight.of(random_weight(rows, seed=rows), method) for rows in (96, 33)]
    b = torch.randn(129) if bias else None
    layer = QuantizedLinear(parts, b)
    plain = torch.cat([part.rows(slice(None)) for part in parts])
    x = torch.randn(7, 512)
    expected = nn.functional.linear(x, plain, b)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)
    assert (layer.shape == (129, 512) and layer(x.bfloat16()).dtype == torch.bfloat16) or bias
    table = QuantizedEmbedding(parts[0], torch.bfloat16)
    assert torch.equal(table(torch.tensor([3, 3, 9])), plain[[3, 3, 9]].bfloat16())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_a_whole_model(method, tied):
    config = ModelConfig(**{**vars(SMALL), "tied": tied})
    plain, few = Transformer.random(config), quantize_model(Transformer.random(config), method)
    ids = torch.arange(20)
    hidden = few(ids, ids, NoCache())
    assert not any(isinstance(m, nn.Linear) for m in few.modules())
    expected = plain.logits(plain(ids, ids, NoCache()))
    assert (few.logits(hidden) - expected).norm() < 0.4 * expected.norm()
    bits = 8 * weight_bytes_of(few) / config.num_parameters
    assert 4 < bits < 11 and few.dtype == torch.float32 and few.device.type == "cpu"


def test_what_cannot_be_quantised_is_one_line():
    with pytest.raises(
        ValueError, match=r"unknown quantization 'int3': use int8, fp8, q8_0, q4_0, int4, int8_per_"
    ):
        find_method("int3")
    assert find_method("int8_per_channel_weight_only") == "int8"
    with pytest.raises(ValueError, match=r"row of 48 weights does not divide into groups of 32: int4 cannot"):
        QuantizedWeight.of(torch.zeros(3, 48), "int4")
    bad = random_weight()
    bad[3, 3] = float("inf")
    for method in METHODS:
        with pytest.raises(ValueError, match="NaN or infinite"):
            QuantizedWeight.of(bad, method)
    with pytest.raises(ValueError, match="NaN or infinite"):
        gptq_int4(random_weight(4, 32), torch.full((32, 32), float("nan")))


# ------------------------------------------------------------------ GPTQ


def test_gptq_makes_up_for_errors_that_rounding_leaves():
    """Inputs that go together: the error of the layer's output falls, though single weights are further off."""
    generator = torch.Generator().manual_seed(0)
    weight = random_weight(64, 128)
    x = torch.randn(500, 16, generator=generator) @ torch.randn(16, 128, generator=generator)
    x += 0.1 * torch.randn(500, 128, generator=generator)
    rounded, better = QuantizedWeight.of(weight, "int4"), gptq_int4(weight, x.t() @ x)

    def errors(stored):
        apart = stored.rows(slice(None)) - weight
        return apart.norm(), (x @ apart.t()).norm()

    (r_weights, r_output), (g_weights, g_output) = errors(rounded), errors(better)
    assert g_output < 0.5 * r_output and g_weights > r_weights
    assert better.nbytes == rounded.nbytes


def test_gptq_with_inputs_that_do_not_go_together_is_rounding():
    weight = random_weight(64, 128)
    found = gptq_int4(weight, torch.eye(128)).rows(slice(None))
    torch.testing.assert_close(found, QuantizedWeight.of(weight, "int4").rows(slice(None)))


def test_gptq_of_a_whole_model_keeps_every_layer_and_leaves_no_hook():
    model = quantize_model_gptq(Transformer.random(SMALL), [range(30), range(20, 60)])
    assert not any(isinstance(m, nn.Linear) or m._forward_pre_hooks for m in model.modules())
    assert {p.kind for b in model.blocks for p in b.attention.qkv.parts} == {"int4"}
    assert model.token_table.weight.kind == "int8"


def test_bits_per_byte_of_a_model_that_knows_nothing():
    """All tokens equally likely: log2(vocabulary) bits a token."""
    model = Transformer.random(SMALL)
    model.head.weight.zero_()
    assert bits_per_byte(model, [*range(64)] * 3, num_bytes=80) == pytest.approx(6 * 191 / 80)
