"""Every family against Hugging Face's, from folders that transformers wrote itself."""

import json
import re
from functools import partial

import pytest
import torch

from phase1_tokens_embeddings.weights.families import FAMILIES
from phase2_attention_kvcache.model import checkpoint
from phase2_attention_kvcache.model.caches import ContiguousKVCache, NoCache
from phase2_attention_kvcache.model.config import read_config
from phase2_attention_kvcache.model.transformer import Transformer
from phase2_attention_kvcache.story.small_families import OWN, SMALL, write_small_model

GLOBAL, LOCAL = "full_attention", "sliding_attention"
YARN = dict(rope_type="yarn", rope_theta=5e3, factor=4.0, original_max_position_embeddings=16)
EXPERTS = dict(num_experts=5, num_experts_per_tok=3)
BIASED = dict(attention_bias=True, num_key_value_heads=4)
SECOND = {  # of each family a second model, beside those in OWN
    "gpt2": OWN["gpt2"] | dict(n_inner=50, tie_word_embeddings=False),
    "llama": dict(rope_parameters=YARN, mlp_bias=True, **BIASED),
    "mistral": dict(sliding_window=None, head_dim=12),
    "qwen2": dict(use_sliding_window=True, sliding_window=5, max_window_layers=2),
    "qwen3": dict(use_sliding_window=True, sliding_window=6, max_window_layers=1, tie_word_embeddings=True,
                  **BIASED),
    "smollm3": dict(no_rope_layers=[0, 1, 1, 0], use_sliding_window=True, sliding_window=8,
                    layer_types=[LOCAL, GLOBAL, GLOBAL, LOCAL], **BIASED),
    "phi3": dict(num_key_value_heads=4, rms_norm_eps=1e-2),
    "olmo2": BIASED,
    "gemma2": dict(sliding_window=50, query_pre_attn_scalar=3, layer_types=[GLOBAL, LOCAL, LOCAL, GLOBAL]),
    "gemma3_text": dict(head_dim=12, sliding_window=9, query_pre_attn_scalar=11,
                        layer_types=[LOCAL, GLOBAL, LOCAL, LOCAL], rope_parameters={
                            GLOBAL: dict(rope_type="linear", factor=2.0, rope_theta=4e5),
                            LOCAL: dict(rope_type="default", rope_theta=99.0)}),
    "qwen3_moe": dict(EXPERTS, moe_intermediate_size=20, head_dim=12),
    "mixtral": dict(num_local_experts=3, num_experts_per_tok=1, sliding_window=6),
    "olmoe": dict(EXPERTS, norm_topk_prob=True, num_key_value_heads=1),
}  # fmt: skip
THIRD = ("llama", dict(
    tie_word_embeddings=True, num_key_value_heads=1, head_dim=32, rms_norm_eps=1e-2,
    rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                         high_freq_factor=4.0, original_max_position_embeddings=32),
))  # fmt: skip
CASES = [*((family, OWN.get(family, {})) for family in FAMILIES), *SECOND.items(), THIRD]


@pytest.mark.parametrize(
    ("family", "changes"),
    CASES,
    ids=[f"{family}-{i // len(FAMILIES)}" for i, (family, _) in enumerate(CASES)],
)
@torch.inference_mode()
def test_logits_equal_those_of_transformers(tmp_path, family, changes):
    """All at once, and in three chunks, of prompts that are longer than the windows."""
    # In float64 the order of sums counts for nothing, on any processor. What is left are norms and angles, which both sides take in
    # float32 (2^-24 each, grown through the layers). transformers multiplies a mixture's experts in float32 at most.
    theirs = write_small_model(family, tmp_path, changes)
    mixture = FAMILIES[family].mixture
    dtype = torch.float32 if mixture else torch.float64
    theirs, ours = theirs.to(dtype), Transformer.from_pretrained(tmp_path, dtype)
    ids, positions = torch.randint(0, 97, (40,), generator=torch.Generator().manual_seed(1)), torch.arange(40)
    expected = theirs(ids[None]).logits[0]
    assert expected.std() > 0.05  # logits that are all alike would agree with anything
    close = partial(torch.testing.assert_close, atol=float(expected.abs().max()) * 2**-15, rtol=0)
    found = ours.logits(ours(ids, positions, NoCache(ours.config)))
    close(found, expected)
    cache = ContiguousKVCache(ours.config)
    chunks = [
        ours(i, p, cache) for i, p in zip(ids.split([9, 30, 1]), positions.split([9, 30, 1]), strict=True)
    ]
    close(ours.logits(torch.cat(chunks)), expected)
    parameters = sum(p.numel() for p in ours.parameters())
    assert parameters == sum(p.numel() for p in theirs.parameters())
    if not changes.get("attention_bias"):  # which published shapes have not, so the count leaves it out
        assert ours.config.num_parameters == parameters


LLAMA = SMALL | dict(rms_norm_eps=1e-6, hidden_act="silu")


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("llama", {"logit_scale": 0.5}, "its setting 'logit_scale' (0.5) is not known here, and could change every answer"),
        ("llama", {"sliding_window": 8}, "its setting 'sliding_window' (8) is not known here"),
        ("llama", {"rope_interleaved": True}, "its setting 'rope_interleaved' (True) is not known here"),
        ("qwen3_moe", {"use_sliding_window": True, "max_window_layers": 2}, "its setting 'max_window_layers' (2) is not known"),
        ("llama", {"hidden_act": "gelu"}, "activation 'gelu' is not computed here, only 'silu'"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0: a window has 1 token or more"),
        ("gemma2", {"layer_types": ["chunked_attention"] * 4}, "layer_types is ['chunked_attention', "),
        ("gemma2", {"layer_types": [GLOBAL]}, "4 layers need as many times"),
        ("gemma3", {}, "its model_type is 'gemma3'; this course knows gpt2, llama,"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers is [1, 0]: 4 layers need a 1 or a 0 each"),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 4}, "layer_types does not say in which layers"),
        ("llama", {"rope_scaling": {"rope_type": "default", "rope_theta": 5e5}}, "theta is 10000.0, but the scaling says rope_theta 500000.0"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5 is not supported"),
        ("phi3", {"rope_scaling": {"type": "longrope"}}, "rotary scaling 'longrope' is not supported"),
        ("phi3", {"partial_rotary_factor": 0.75}, "partial_rotary_factor is 0.75; computed here is only 1.0"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv is 8.0; computed here is only None"),
        ("olmoe", {"num_experts": 4}, "num_experts_per_tok is 8, a whole number from 1 to 4 is needed"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, "mlp_only_layers is [1]; computed here is only None"),
        ("qwen3", {"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantization_config is of a kind that is not read"),
        ("qwen3", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config is of a kind that is not read"),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_refused_by_name(tmp_path, family, change, message):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"model_type": family} | change))
    with pytest.raises(ValueError, match=re.escape(message)):
        Transformer.from_pretrained(tmp_path)


def test_settings_without_effect_are_passed_over(tmp_path):
    notes = {
        "logit_scale": None,
        "_name": 3,
        "pretraining_tp": 2,
        "architectures": ["X"],
        "mup": False,
        "torch_dtype": "x",
        "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
    }
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"model_type": "llama"} | notes))
    assert read_config(tmp_path).d_model == 32


SMOLLM3_3B = dict(  # as published: with the names of older files
    model_type="smollm3", architectures=["SmolLM3ForCausalLM"], attention_bias=False, attention_dropout=0.0,
    bos_token_id=128000, eos_token_id=128012, hidden_act="silu", hidden_size=2048, initializer_range=0.02,
    intermediate_size=11008, max_position_embeddings=65536, max_window_layers=28, mlp_bias=False, no_rope_layer_interval=4,
    no_rope_layers=[1, 1, 1, 0] * 9, num_attention_heads=16, num_hidden_layers=36, num_key_value_heads=4,
    pad_token_id=128004, pretraining_tp=2, rms_norm_eps=1e-6, rope_scaling=None, rope_theta=5e6, sliding_window=None,
    torch_dtype="bfloat16", transformers_version="4.54.0", use_cache=True, use_sliding_window=False, vocab_size=128256,
)  # fmt: skip


def test_the_settings_of_a_published_model_are_understood(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM3_3B))
    config = read_config(tmp_path)
    assert config.num_layers == 36 and not any(map(config.window, range(36)))
    assert config.no_rope_layers == tuple(range(3, 36, 4)) and config.rope_theta == 5e6


def test_a_model_larger_than_the_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    write_small_model("llama", tmp_path)
    size = sum(p.nbytes for p in Transformer.from_pretrained(tmp_path).parameters())
    monkeypatch.setattr(checkpoint, "memory_bytes", lambda device: size - 1)
    monkeypatch.setattr(checkpoint, "read_tensors", None)  # must not be called
    with pytest.raises(
        ValueError,
        match=r"in float32, and this machine has 0\.0 GB: take a smaller model, or with dtype bfloat16",
    ):
        Transformer.from_pretrained(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(checkpoint, "memory_bytes", lambda device: size // 2)
    assert Transformer.from_pretrained(tmp_path, "bfloat16").dtype == torch.bfloat16
