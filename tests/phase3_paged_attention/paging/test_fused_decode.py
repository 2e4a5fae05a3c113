"""A decode step as one compiled call equals the plain blocks."""

import copy
from dataclasses import replace

import pytest
import torch

from phase1_tokens_embeddings.weights.families import FAMILIES
from phase2_attention_kvcache.model import ModelConfig, Transformer
from phase2_attention_kvcache.model.caches import AttentionRule
from phase2_attention_kvcache.model.quantized_linear import quantize_model
from phase3_paged_attention.paging import PagedKVCache, StepLayout

pytest.importorskip("numba")

from phase2_attention_kvcache.model.packed_quantized import pack_quantized_layers
from phase2_attention_kvcache.model.tiled_linear import tile_linear_layers
from phase3_paged_attention.paging import decode_phases, fused_decode
from phase3_paged_attention.paging.fused_decode import can_fuse, fuse_blocks
from tests.properties import with_rules

LLAMA = ModelConfig(
    name="test", family="llama", vocab_size=97, d_model=64, num_layers=3, num_heads=4, num_kv_heads=2,
    head_dim=32, d_ff=96, max_context=256, tied=False, attention_bias=False, mlp_bias=False,
)  # fmt: skip


class Subclass(PagedKVCache):
    """Attends in its own way."""


def make_plain(family, dtype):
    if family == "gpt2":
        return Transformer.from_pretrained("tales", dtype)
    model = Transformer.random(
        replace(LLAMA, family=family, no_rope_layers=(1,) * (family == "smollm3")), dtype
    )
    for name, norm in model.named_parameters():
        if "q_norm" in name or "k_norm" in name:
            norm.data.copy_(torch.linspace(0.2, 2, len(norm)))
    return model


def make_model(family, dtype, method=None):
    """Laid out for the kernels, in `dtype`, or with weights in few bits."""
    model = make_plain(family, dtype)
    if method is None:
        return tile_linear_layers(model)
    return pack_quantized_layers(quantize_model(model, method))


def step(model, layout, kind=PagedKVCache, values=None, config=None, **settings):
    """Vectors of a step over a cache full of noise (rounded to `values`), and what the cache holds afterwards."""
    torch.manual_seed(0)
    kv = kind(config or model.config, 12, 16, model.dtype, **settings)
    kv.storage.data.copy_(torch.randn(kv.storage.data.shape).to(values or model.dtype))
    if kv.storage.scales is not None:
        kv.storage.scales.fill_(1)
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


def many():
    """More rows than a part of a product has. Sixteen requests write to one block, and each sees those before it."""
    numbers = range(70)
    return StepLayout(
        [1] * 70, [i % 16 + 1 for i in numbers], [[1 + i // 16] for i in numbers], torch.arange(16, 86)
    )


def mixture():
    return StepLayout([2, 1], [2, 17], [[1], [2, 3]], torch.tensor([16, 17, 48]))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("method", ["int8", "int4"])
def test_equals_the_plain_blocks(family, method):
    plain = make_model(family, "float32", method)
    fused = fuse_blocks(copy.deepcopy(plain))
    for layout in (decodes(), mixture()):
        for ours, theirs in zip(step(fused, layout), step(plain, layout)):
            # (Not closer: a last bit may decide which of two codes an activation is rounded to.)
            assert (ours - theirs).norm() < 0.02 * theirs.norm()


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "smollm3"])
def test_float32(family):
    """Only the last digits differ: sums go in another order."""
    plain, fused = make_plain(family, "float32"), fuse_blocks(make_model(family, "float32"))
    windows = [(None, 20, 1)[layer % 3] for layer in range(plain.config.num_layers)]
    windowed = with_rules(plain.config, [AttentionRule(0.3, window, 4.0) for window in windows])
    for config in (None, windowed):
        for layout in (decodes(), mixture(), drafts(), many()):
            for ours, theirs in zip(step(fused, layout, config=config), step(plain, layout, config=config)):
                assert (ours - theirs).norm() < 3e-6 * theirs.norm()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_16_bits(family):
    """The same weights, multiplied exactly, say which is nearer: the one call, or the plain blocks in 16 bits."""
    plain, fused = make_plain(family, "bfloat16"), fuse_blocks(make_model(family, "bfloat16"))
    exact = make_plain(family, "bfloat16").double()
    for layout in (decodes(), drafts()):
        expected, _ = step(exact, layout, values=torch.bfloat16)
        (ours, cache), (theirs, plain_cache) = step(fused, layout), step(plain, layout)
        assert (ours - expected).norm() < (theirs - expected).norm()
        assert (cache != plain_cache).float().mean() < 0.05  # keys and values went to the same slots


@pytest.mark.parametrize("kv_cache_dtype", ["int8_per_token_head", "fp8"])
def test_a_narrow_cache_gets_the_plain_blocks(kv_cache_dtype, monkeypatch):
    """The compiled attention reads no keys in 8 bits."""
    model = fuse_blocks(make_model("llama", "float32"))
    monkeypatch.setattr(fused_decode, "decode_blocks", None)  # must not be called
    ours, _ = step(model, decodes(), kv_cache_dtype=kv_cache_dtype)
    theirs, _ = step(make_plain("llama", "float32"), decodes(), kv_cache_dtype=kv_cache_dtype)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_parts_of_a_learner_s_own_are_asked():
    """A hook, or another layer in a block, that came after the blocks were made one."""
    model = fuse_blocks(make_model("llama", "float32"))
    called = []
    hook = model.blocks[1].mlp.register_forward_hook(lambda *args: called.append("hook"))
    step(model, decodes())
    assert called == ["hook"]
    hook.remove()

    class Own(type(model.blocks[2].attention.out)):
        def forward(self, x):
            called.append("own")
            return super().forward(x)

    out = model.blocks[2].attention.out
    model.blocks[2].attention.out = Own(out.weight, None)
    step(model, decodes())
    assert called == ["hook", "own"]
    model.blocks[2].attention.out = out
    step(model, decodes())
    assert called == ["hook", "own"]


@pytest.mark.parametrize(("dtype", "method"), [("float32", "int8"), ("float32", None), ("bfloat16", None)])
def test_which_steps(dtype, method, monkeypatch):
    """One call for decode steps of a `PagedKVCache` alone: a subclass may attend in its own way."""
    model = fuse_blocks(make_model("llama", dtype, method))
    calls = []
    real = fused_decode.decode_blocks
    monkeypatch.setattr(fused_decode, "decode_blocks", lambda *args: (calls.append(1), real(*args)))
    for layout, kind, expected in (
        (mixture(), PagedKVCache, 0),
        (decodes(), Subclass, 0),
        (decodes(), PagedKVCache, 1),
        (drafts(), PagedKVCache, 1),
    ):
        calls.clear()
        step(model, layout, kind)
        assert len(calls) == expected


class Watched:
    """Hands steps on to the helpers, or keeps them for later."""

    def __init__(self, monkeypatch, later=False):
        self.steps, self.later, self.helpers = [], later, decode_phases.STEPS
        for number in range(3):
            decode_phases.start_helper(number)  # they wait at the real queue
        monkeypatch.setattr(decode_phases, "STEPS", self)

    def put(self, step):
        self.steps.append(step)
        if not self.later:
            self.helpers.put(step)


def test_the_same_bits_every_time_with_any_number_of_threads(monkeypatch):
    """Who takes which part is left to chance. No number depends on it."""
    watched = Watched(monkeypatch)
    model = fuse_blocks(make_model("llama", "float32"))
    for layout in (decodes(), drafts()):
        results = []
        for threads in (1, 2, 4):
            monkeypatch.setattr(torch, "get_num_threads", lambda: threads)  # noqa: B023  called at once
            watched.steps.clear()
            results += [step(model, layout) for _ in range(30)]
            assert len(watched.steps) == 30 * (threads - 1)
        for hidden, cache in results[1:]:
            assert torch.equal(hidden, results[0][0]) and torch.equal(cache, results[0][1])


def test_a_helper_that_comes_when_all_is_done(monkeypatch):
    """Nobody has waited for it, and it changes nothing."""
    watched = Watched(monkeypatch, later=True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    step(fuse_blocks(make_model("llama", "float32")), decodes())
    [late] = watched.steps
    rows, _, _, keys, _ = late
    before = copy.deepcopy([*rows, keys.k_cache, keys.v_cache])
    decode_phases.work_through(*late)
    for array, expected in zip([*rows, keys.k_cache, keys.v_cache], before):
        assert array.tobytes() == expected.tobytes()


@pytest.mark.parametrize("method", [None, "int8"])
def test_a_thread_that_lost_its_core(method, monkeypatch):
    """It has taken the first part of every phase, and never publishes it: somebody else does."""
    model = fuse_blocks(make_model("llama", "float32", method))
    expected = step(model, decodes())
    real, boards = decode_phases.new_board, []

    def board_of_a_lost_thread(*shape):
        boards.append(real(*shape))
        boards[-1].taken[:, 0] = 1
        return boards[-1]

    monkeypatch.setattr(decode_phases, "new_board", board_of_a_lost_thread)
    for ours, theirs in zip(step(model, decodes()), expected):
        assert torch.equal(ours, theirs)
    assert boards[0].claimed[:, 0].all()


@pytest.mark.parametrize("method", [None, "q4_0"])
def test_weights_are_in_memory_once(method):
    """Each layer multiplies with its own part of what the one call reads."""
    model = fuse_blocks(make_model("gpt2", "float32", method))
    stacked = model.blocks.layers
    for layer, block in enumerate(model.blocks):
        attention, mlp = block.attention, block.mlp
        for linear, all_layers in (
            (attention.qkv, stacked.qkv), (attention.out, stacked.out), (mlp.up, stacked.up), (mlp.down, stacked.down)
        ):  # fmt: skip
            weights = all_layers[0][layer].ctypes.data  # codes, or numbers
            assert next(linear.weight.buffers()).data_ptr() == linear.tiles[0].ctypes.data == weights


def test_which_families_have_such_a_step():
    """The table in phase 4's README names them."""
    config = replace(LLAMA, num_experts=2, experts_per_token=1)
    models = {family: Transformer.random(replace(config, family=family)) for family in FAMILIES}
    fused = {family for family, model in models.items() if can_fuse(tile_linear_layers(model))}
    assert fused == {"gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3"}


def test_what_cannot_be_fused():
    model = make_model("llama", "float32", "int8")
    assert can_fuse(model)
    other = quantize_model(Transformer.random(LLAMA), "q4_0")
    model.blocks[1] = pack_quantized_layers(other).blocks[1]
    assert not can_fuse(model)
    assert not can_fuse(Transformer.random(LLAMA))
    model = make_model("llama", "float32")
    assert can_fuse(model)

    class Own(type(model.blocks[1])):
        pass

    model.blocks[1].__class__ = Own  # a learner's own block may do more than ours
    assert not can_fuse(model)


@pytest.mark.parametrize("method", [None, "int8"])
def test_what_registers_read_begins_where_they_begin(method, monkeypatch):
    """64 bytes at a time: were weights or rows to begin in the middle of them, each register would take two readings."""
    seen = []
    real = decode_phases.work_through
    monkeypatch.setattr(decode_phases, "work_through", lambda *step: (seen.append(step), real(*step)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    step(fuse_blocks(make_model("llama", "bfloat16", method)), many())
    [(rows, inputs, layers, _, _)] = seen
    matrices = (layers.qkv, layers.out, layers.up, layers.down)
    arrays = [*rows[1:], *(array for matrix in matrices for array in matrix)]
    arrays += [array for array in inputs if not isinstance(array, tuple)]
    assert [array.ctypes.data % 64 for array in arrays] == [0] * len(arrays)
