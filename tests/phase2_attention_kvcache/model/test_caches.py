"""Caches and generation: the same tokens whatever remembers them, and work that is counted right."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase2_attention_kvcache.model.attention import attention
from phase2_attention_kvcache.model.caches import AttentionRule, ContiguousKVCache, NoCache, causal_attention
from phase2_attention_kvcache.model.config import GPT2_124M
from phase2_attention_kvcache.model.generation import generate_cached, generate_naive
from phase2_attention_kvcache.model.transformer import Transformer
from phase2_attention_kvcache.story.telling import WordWrap
from tests.properties import plain_attention, rules


@pytest.fixture(scope="module")
def tales():
    return Transformer.from_pretrained("tales")


@pytest.fixture(scope="module")
def llama(make_llama):
    folder, theirs = make_llama()
    return Transformer.from_pretrained(folder), theirs


prompts = st.lists(st.integers(0, 210), min_size=1, max_size=40)


@given(prompt=prompts, new=st.integers(1, 30))
@settings(max_examples=30)
def test_naive_and_cached_write_what_transformers_writes(llama, prompt, new):
    ours, theirs = llama
    naive, cached = generate_naive(ours, prompt, new), generate_cached(ours, prompt, new)
    expected = theirs.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=new, min_new_tokens=new,
        do_sample=False, pad_token_id=0, eos_token_id=None,
    )[0, len(prompt):].tolist()  # fmt: skip
    assert naive.token_ids == cached.token_ids == expected
    p = len(prompt)
    assert naive.computed_tokens == sum(p + i for i in range(new))
    assert cached.computed_tokens == p + new - 1
    assert len(naive.step_seconds) == len(cached.step_seconds) == new


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4]), rules)
@settings(max_examples=60)
def test_the_fused_function_and_the_readable_one_are_the_definition(m, n, kv_heads, group, rule):
    n = min(n, m)
    torch.manual_seed(m * 100 + n)
    q = torch.randn(n, kv_heads * group, 16)
    k, v = torch.randn(m, kv_heads, 16), torch.randn(m, kv_heads, 16)
    expected = plain_attention(q, k, v, rule)
    two = causal_attention(*(torch.stack([torch.randn_like(x), x]) for x in (q, k, v)), rule)
    for out in (causal_attention(q, k, v, rule), attention(q, k, v, **rule._asdict()), two[1]):
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-4)
    plain = AttentionRule(16**-0.5)
    torch.testing.assert_close(
        causal_attention(q, k, v).double(), plain_attention(q, k, v, plain), atol=1e-5, rtol=1e-4
    )


def test_room_doubles_and_ends_at_the_limit(tales):
    cache = ContiguousKVCache(replace(tales.config, max_context=100))
    k = torch.randn(1, tales.config.num_kv_heads, tales.config.head_dim)
    kept = []
    for i in range(100):
        for layer in range(tales.config.num_layers):
            keys, _ = cache.append(layer, k + i, k)
        kept.append(cache.bytes_reserved)
    assert torch.equal(keys, torch.cat([k + i for i in range(100)]))  # growing lost nothing
    one_token = 2 * tales.config.num_layers * k.nbytes
    assert sorted(set(kept)) == [64 * one_token, 100 * one_token]
    assert cache.bytes_used == cache.bytes_reserved == 100 * one_token
    with pytest.raises(ValueError, match="KV cache is full: 101 tokens asked for, it holds 100"):
        cache.append(0, k, k)
    assert cache.num_tokens == 100
    assert len(generate_cached(tales, [1] * 1020, 4).token_ids) == 4  # the last place of a context is used


@pytest.mark.parametrize("generate", [generate_naive, generate_cached])
@pytest.mark.parametrize(
    ("prompt", "new", "message"),
    [
        ([], 5, "the prompt is empty"),
        ([1] * 1025, 1, "1025 prompt tokens .* context of 1024.*at most 0 tokens"),
        ([1] * 1000, 25, "at most 24 tokens"),
        ([1, 8192], 5, "token id 8192 is out of range"),
        ([-3], 5, "token id -3"),
        ([1], 0, "max_new_tokens is 0"),
        ([1], -2, "max_new_tokens is -2"),
    ],
)
def test_bad_prompts(tales, generate, prompt, new, message):
    with pytest.raises(ValueError, match=message):
        generate(tales, prompt, new)


@pytest.mark.parametrize("generate", [generate_naive, generate_cached])
def test_stops_at_a_stop_token(tales, generate):
    free = generate(tales, [4078, 639], 20)
    stop = free.token_ids[7]
    first = free.token_ids.index(stop)
    assert generate(tales, [4078, 639], 20, stop_ids={stop}).token_ids == free.token_ids[: first + 1]


@given(st.lists(st.sampled_from(["a", " king", " who", "\n", ".", " extraordinarily", "ing"]), max_size=80))
def test_word_wrap_keeps_the_text_and_the_width(words):
    written = []
    wrap = WordWrap(written.append, width=30)
    for word in words:
        wrap(word)
    text = "".join(written)
    assert text.replace("\n", " ").split() == "".join(words).replace("\n", " ").split()


def test_no_cache_refuses_a_model_that_attends_otherwise():
    config = replace(GPT2_124M, num_layers=1, vocab_size=20, windows=(3,))
    model, ids = Transformer.random(config), torch.arange(5)
    with pytest.raises(ValueError, match=r"give NoCache\(model.config\)"):
        model(ids, ids, NoCache())
    windowed, everything = model(ids, ids, NoCache(config)), model(ids, ids, ContiguousKVCache(config))
    torch.testing.assert_close(windowed, everything)
