"""Bytes: copies between blocks and main memory, and a model whose block manager gives blocks back early."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase2_attention_kvcache.model.caches import NoCache
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import KVStorage, PagedKVCache
from phase3_paged_attention.sharing import BlockCopy, SwapSpace, WindowedBlockManager, widest_window
from tests.paged_case import model_config
from tests.phase3_paged_attention.paging.test_paged_kv_cache import run_in_chunks
from tests.properties import contrasted


def test_copies_are_made_in_order():
    storage = KVStorage(model_config(2, 1, 8, num_layers=3), num_blocks=6, block_size=2)
    storage.data.copy_(torch.arange(6.0)[:, None, None, None].expand(6, 2, 1, 8))
    space = SwapSpace(storage, num_swap_blocks=3)
    [(_, swap)] = space._pairs
    swap.copy_(torch.arange(10.0, 13.0).view(3, 1, 1, 1, 1, 1).expand(swap.shape))
    space.apply(
        [
            BlockCopy("copy", 1, 2),  # 1 1
            BlockCopy("out", 2, 0),  # what arrived a moment ago goes on
            BlockCopy("in", 1, 1),
            BlockCopy("in", 0, 4),
            BlockCopy("copy", 1, 5),
        ]
    )
    assert storage.data[:, :, :, 0, 0, 0].unique(dim=1).tolist() == [[[0, 11, 1, 3, 1, 11]]] * 2
    assert swap.flatten(1).unique(dim=1).tolist() == [[1], [11], [12]]
    for block in range(6):  # whole blocks: all tokens, heads, numbers, in all layers
        assert storage.data[:, :, block].unique().numel() == 1


@pytest.mark.parametrize("compiled", [True, False])
@given(
    lengths=st.lists(st.integers(1, 45), min_size=1, max_size=4),
    chunks=st.lists(st.sampled_from([1, 1, 2, 3, 7, 16, 50]), min_size=1, max_size=6),
    size=st.sampled_from([1, 2, 3, 5, 8, 16]),
)
@settings(max_examples=8)
def test_a_model_with_windows_never_misses_the_blocks_that_were_given_back(compiled, lengths, chunks, size):
    config = model_config(4, 2, 8, num_layers=3, family="mistral", windows=(6, 9, 6))
    model = contrasted(Transformer.random(config))
    texts = [[(7 * i + 5 * n) % 97 for i in range(n)] for n in lengths]
    num_blocks = sum(-(-n // size) for n in lengths) + 1
    cache = PagedKVCache(config, num_blocks, size, use_kernel=compiled)
    cache.storage.data.fill_(math.nan)
    manager = WindowedBlockManager(
        num_blocks, size, False, sliding_window=widest_window(config), max_new_tokens=50
    )
    with torch.inference_mode():
        got = run_in_chunks(model, cache, manager, texts, chunks)
        for text, logits in zip(texts, got, strict=True):
            whole = model.logits(model(torch.tensor(text), torch.arange(len(text)), NoCache(config)))
            torch.testing.assert_close(logits, whole, atol=1e-5, rtol=1e-5)
