"""The CPU backend around a model: the same numbers, the given model as it was, and a learner's own parts untouched."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from phase2_attention_kvcache.model import ModelConfig, SamplingParams, Transformer
from phase2_attention_kvcache.model.caches import AttentionRule
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedLinear, quantize_model
from phase3_paged_attention.paging import PagedKVCache, StepLayout, compiled_kernel
from phase3_paged_attention.sharing import QuantizedKVStorage
from phase4_scheduler.cpu import backend, choice, prepare
from phase4_scheduler.cpu.linear import CPULinear
from phase4_scheduler.engine import LLMEngine
from tests.properties import with_rules

needs_numba = pytest.mark.skipif(compiled_kernel() is None, reason="needs numba")
LLAMA = ModelConfig(
    name="test", family="llama", vocab_size=97, d_model=64, num_layers=3, num_heads=4, num_kv_heads=2,
    head_dim=32, d_ff=96, max_context=256, tied=False, attention_bias=False, mlp_bias=False,
)  # fmt: skip


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch):
    monkeypatch.setattr(choice, "ROUNDS", 1)
    monkeypatch.setattr(choice, "SECONDS", 0)
    monkeypatch.setattr(backend, "SMALL", 0)


class Subclass(PagedKVCache):
    """Attends in its own way."""


def make_model(family, dtype, method=None):
    if family == "gpt2":
        model = Transformer.from_pretrained("tales", dtype)
    else:
        model = Transformer.random(
            replace(LLAMA, family=family, no_rope_layers=(1,) * (family == "smollm3")), dtype
        )
    for name, norm in model.named_parameters():
        if "q_norm" in name or "k_norm" in name:
            norm.data.copy_(torch.linspace(0.2, 2, len(norm)))
    return model if method is None else quantize_model(model, method)


def step(model, layout, kind=PagedKVCache, values=None, config=None, **settings):
    """Vectors of a step over a cache full of noise (rounded to `values`), and what the cache holds afterwards."""
    torch.manual_seed(0)
    config = config or model.config
    if "kv_cache_dtype" in settings:
        settings = {"storage": QuantizedKVStorage(config, 12, 16, model.dtype, **settings)}
    kv = kind(config, 12, 16, model.dtype, **settings)
    kv.storage.data.copy_(torch.randn(kv.storage.data.shape).to(values or model.dtype))
    kv.begin_step(layout)
    positions = torch.cat([torch.arange(c - n, c) for c, n in zip(layout.context_lens, layout.query_lens)])
    with torch.inference_mode():
        return model(positions + 3, positions, kv).double(), kv.storage.data.double()


def decodes():
    slots = torch.tensor([1 * 16 + 4, 6 * 16 + 0, 8 * 16 + 15])
    return StepLayout([1, 1, 1], [5, 33, 32], [[1], [4, 5, 6], [7, 8]], slots)


def drafts():
    """Three tokens of one request: each sees those before it."""
    slots = torch.tensor([16 + 4, 16 + 5, 16 + 6, 8 * 16 + 15])
    return StepLayout([3, 1], [7, 32], [[1], [7, 8]], slots)


def mixture():
    return StepLayout([2, 1], [2, 17], [[1], [2, 3]], torch.tensor([16, 17, 48]))


@pytest.fixture
def fused(monkeypatch):
    """Every block is fused for any number of rows, whatever is the fastest here. Yields the calls."""
    pytest.importorskip("numba")
    from phase4_scheduler.cpu import fused_block

    calls, real = [], fused_block.decode_block
    monkeypatch.setattr(fused_block, "decode_block", lambda *args: (calls.append(1), real(*args)))
    init = CPULinear.__init__

    def keep_matrix(self, ways, times, matrix):
        init(self, ways, times, matrix)
        self.matrix, self.most_rows = matrix, 100

    monkeypatch.setattr(CPULinear, "__init__", keep_matrix)
    return calls


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "smollm3", "gemma2", "mixtral"])
@pytest.mark.parametrize("method", [None, "int8", "int4", "q8_0", "q4_0"])
def test_float32(family, method):
    """With what is the fastest here. Only the last digits differ: sums go in another order."""
    if family == "mixtral":
        model = Transformer.random(
            replace(LLAMA, family=family, num_experts=4, experts_per_token=2), "float32"
        )
        model = model if method is None else quantize_model(model, method)
    else:
        model = make_model(family, "float32", method)
    for layout in (decodes(), mixture(), drafts()):
        for ours, theirs in zip(step(prepare(model), layout), step(model, layout)):
            assert (ours - theirs).norm() < 3e-6 * theirs.norm()


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "smollm3"])
@pytest.mark.parametrize("method", [None, "int8", "q4_0"])
def test_fused_float32(family, method, fused):
    plain = make_model(family, "float32", method)
    model = prepare(plain)
    windows = [(None, 20, 1)[layer % 3] for layer in range(plain.config.num_layers)]
    windowed = with_rules(plain.config, [AttentionRule(0.3, window, 4.0) for window in windows])
    for config in (None, windowed):
        for layout in (decodes(), drafts()):
            fused.clear()
            for ours, theirs in zip(step(model, layout, config=config), step(plain, layout, config=config)):
                assert (ours - theirs).norm() < 3e-6 * theirs.norm()
            assert len(fused) == plain.config.num_layers


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_fused_16_bits(family, fused):
    """The same weights, multiplied exactly, say which is nearer: the one call, or the plain blocks in 16 bits."""
    plain, exact = make_model(family, "bfloat16"), make_model(family, "bfloat16").double()
    for layout in (decodes(), drafts()):
        expected, _ = step(exact, layout, values=torch.bfloat16)
        (ours, cache), (theirs, plain_cache) = step(prepare(plain), layout), step(plain, layout)
        assert (ours - expected).norm() < (theirs - expected).norm()
        assert (cache != plain_cache).float().mean() < 0.05  # keys and values went to the same slots


def test_which_steps_are_fused(fused):
    """Decode steps of a `PagedKVCache` alone: a subclass may attend in its own way, and keys in 8 bits are unpacked by torch."""
    model, layers = prepare(make_model("llama", "float32")), LLAMA.num_layers
    for layout, settings, expected in (
        (mixture(), {}, 0),
        (decodes(), dict(kind=Subclass), 0),
        (decodes(), dict(use_kernel=False), 0),
        (decodes(), dict(kv_cache_dtype="fp8"), 0),
        (decodes(), {}, layers),
        (drafts(), {}, layers),
    ):
        fused.clear()
        step(model, layout, **settings)
        assert len(fused) == expected


def test_parts_of_a_learner_s_own_are_asked(fused):
    """A hook, or another layer in a block, that came after the model was prepared."""
    model, called = prepare(make_model("llama", "float32")), []
    hook = model.blocks[1].mlp.register_forward_hook(lambda *args: called.append("hook"))
    step(model, decodes())
    assert called == ["hook"] and len(fused) == LLAMA.num_layers - 1
    hook.remove()

    class Own(nn.Module):
        def forward(self, x):
            called.append("own")
            return out(x)

    out = model.blocks[2].attention.out
    model.blocks[2].attention.out = Own()
    step(model, decodes())
    assert called == ["hook", "own"]


@pytest.mark.parametrize("method", [None, "q8_0"])
def test_the_model_is_not_changed(method):
    model = make_model("llama", "bfloat16", method)
    before = {name: (id(part), type(part)) for name, part in model.named_modules()}
    numbers = copy.deepcopy(model.state_dict())
    prepared = prepare(model)
    step(prepared, decodes())
    assert prepared is not model
    assert {name: (id(part), type(part)) for name, part in model.named_modules()} == before
    assert all(torch.equal(numbers[name], found) for name, found in model.state_dict().items())
    assert not any(type(part) in (nn.Linear, QuantizedLinear) for part in prepared.modules())
    assert prepared.final_norm is model.final_norm  # what needs no other form is shared


def test_what_stays():
    """A learner's own layer, and number formats that have no other way."""

    class Own(nn.Linear):
        pass

    model = Transformer.from_pretrained("tales-draft", "bfloat16")
    own = model.blocks[0].mlp.up = Own(8, 8, dtype=torch.bfloat16)
    prepared = prepare(model)
    assert prepared.blocks[0].mlp.up is own
    assert type(prepared.blocks[0].attention.qkv) is CPULinear
    for dtype in ("float64", "float16"):
        other = make_model("llama", "float32").to(getattr(torch, dtype))
        assert prepare(other) is other


def test_small_layers_stay(monkeypatch):
    """There is nothing to be won, so a model of small matrices stays the very one that was given."""
    monkeypatch.setattr(backend, "SMALL", 1 << 15)
    model = make_model("llama", "float32")
    assert prepare(model) is model


def test_prepared_twice():
    once = prepare(make_model("gpt2", "float32"))
    assert prepare(once) is once


@pytest.mark.parametrize("method", [None, "int8", "q4_0"])
def test_the_engine_writes_the_same_with_and_without(method, monkeypatch):
    def write():
        engine = LLMEngine.from_pretrained("tales", "float32", "cpu", num_blocks=40, quantization=method)
        params = SamplingParams(temperature=0, max_tokens=12)
        kinds = {type(part) for part in engine.model.modules()}
        return CPULinear in kinds, engine.generate("Once upon a time", params)[0].outputs[0].text

    with_backend, text = write()
    assert with_backend
    monkeypatch.setattr(backend, "prepare", lambda model: model)
    assert write() == (False, text)
