"""A prefix cache may change what is computed, never what comes out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase2_attention_kvcache.model.config import ModelConfig
from phase2_attention_kvcache.model.generation import generate_cached
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.story.prefix_server import PrefixServer
from tests.properties import contrasted

VOCABULARY = 61


@pytest.fixture(scope="module")
def model():
    config = ModelConfig(
        name="test", family="llama", vocab_size=VOCABULARY, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2,
        head_dim=8, d_ff=48, max_context=128, tied=False, attention_bias=False, mlp_bias=False,
    )  # fmt: skip
    return contrasted(Transformer.random(config))


ends = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20)
requests = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), ends), min_size=2, max_size=8)


@given(requests, st.sampled_from([1, 3, 4, 16]), st.integers(0, 60), st.integers(1, 6))
@settings(max_examples=15)
def test_the_tokens_are_those_of_a_cache_for_one(model, requests, block_size, spare, new):
    """Four beginnings, cut anywhere, own ends, and a cache of any size, down to one that always evicts."""
    texts = torch.randint(0, VOCABULARY, (4, 60), generator=torch.Generator().manual_seed(0)).tolist()
    prompts = [texts[b][:cut] + end for b, cut, end in requests]
    longest = max(map(len, prompts)) + new
    server = PrefixServer(model, -(-longest // block_size) + 1 + spare // block_size, block_size)
    server.kv_cache.storage.data.fill_(float("nan"))
    for prompt in prompts:
        expected = generate_cached(model, prompt, new)
        served = server.serve(prompt, new)
        assert served.token_ids == expected.token_ids
        assert served.hit_tokens + served.computed_tokens == expected.computed_tokens
        assert served.hit_tokens % block_size == 0 and served.hit_tokens < len(prompt)
        server.manager.check_integrity()
        assert server.manager.num_free_blocks == server.manager.num_blocks - 1
