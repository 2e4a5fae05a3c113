"""Keys and values in 8 bits: what is stored, what comes back, and that nothing but the storage knows."""

import pytest
import torch

from phase2_attention_kvcache.model import GPT2_124M, Transformer
from phase2_attention_kvcache.model.caches import AttentionRule
from phase2_attention_kvcache.model.config import ModelConfig
from phase2_attention_kvcache.quantization.kv_formats import (
    KV_CACHE_DTYPES,
    RoundingCache,
    dequantize_kv,
    kv_bytes_of_token,
    quantize_kv,
)
from phase3_paged_attention.paging import KVStorage, PagedKVCache, StepLayout
from phase3_paged_attention.sharing import BlockCopy, QuantizedKVStorage, SwapSpace
from tests.properties import with_rules

NARROW = KV_CACHE_DTYPES[1:]
SMALL = ModelConfig("small", "llama", 64, 32, 2, 4, 2, 8, 64, 128, tied=False)


def make_storage(kind, *args, **kwargs):
    if kind == "auto":
        return KVStorage(*args, **kwargs)
    return QuantizedKVStorage(*args, **kwargs, kv_cache_dtype=kind)


@pytest.mark.parametrize("kind", NARROW)
def test_what_comes_back_is_near_what_went_in(kind):
    x = torch.randn(50, 4, 64, generator=torch.Generator().manual_seed(0))
    x[7] *= 100  # one token is far larger; its neighbours must not notice
    x[9] = 0
    back = dequantize_kv(*quantize_kv(x, kind), torch.float32)
    error = (back - x).abs().amax(-1) / x.abs().amax(-1).clamp(min=1e-9)
    assert error.max() < (0.005 if kind.startswith("int8") else 0.0625)
    assert not back[9].any() and back.isfinite().all()
    assert (
        dequantize_kv(*quantize_kv(torch.full((1, 1, 8), 1e6), kind), torch.float32).isfinite().all()
        or kind != "fp8"
    )


def test_bytes_are_counted_as_they_are():
    """GPT-2: 36,864 bytes a token in 16 bits; 18,432 in fp8; int8 has a scale of 2 bytes for 64 numbers besides."""
    sizes = {k: kv_bytes_of_token(GPT2_124M, k, torch.bfloat16) for k in KV_CACHE_DTYPES}
    assert sizes == {"auto": 36864, "fp8": 18432, "int8_per_token_head": 18432 + 2 * 12 * 12 * 2}
    for kind, nbytes in sizes.items():
        storage = make_storage(kind, GPT2_124M, 2, 16, torch.bfloat16)
        assert storage.nbytes == 32 * nbytes


@pytest.mark.parametrize("kind", KV_CACHE_DTYPES)
def test_copies_and_swaps_take_the_scales_along_and_are_made_in_order(kind):
    storage = make_storage(kind, SMALL, 4, 4)
    space = SwapSpace(storage, num_swap_blocks=2)
    k, v = torch.randn(2, 4, 2, 8, generator=torch.Generator().manual_seed(1))
    for layer in range(2):
        storage.write(layer, torch.arange(4, 8), k * (layer + 1), v)
    first = [storage.gather(layer, torch.tensor([1]), 4) for layer in range(2)]
    space.apply([BlockCopy("copy", 1, 2), BlockCopy("out", 2, 1)])
    storage.write(0, torch.arange(4, 12), torch.ones(8, 2, 8), torch.ones(8, 2, 8))
    space.apply([BlockCopy("copy", 1, 2), BlockCopy("in", 1, 1), BlockCopy("copy", 1, 3)])
    assert not torch.equal(storage.gather(0, torch.tensor([2]), 4)[0], first[0][0])
    for layer, (keys, values) in enumerate(first):
        torch.testing.assert_close(keys, k * (layer + 1), rtol=0.1, atol=0.05)
        again = storage.gather(layer, torch.tensor([3]), 4)
        assert torch.equal(again[0], keys) and torch.equal(again[1], values)


def steps(model, config, kind, cuts, twins=1):
    """Hidden states of one request of 40 tokens, the last of equal ones, computed in pieces."""
    size = 10 * twins + 2
    cache = PagedKVCache(config, size, 4, storage=make_storage(kind, config, size, 4))
    for tensor in cache.storage.tensors:
        tensor.view(torch.uint8).fill_(255)  # NaN, if it were ever read
    ids, rows = torch.arange(40) * 5 % 64, []
    tables = [list(range(1 + 10 * i, 11 + 10 * i)) for i in range(twins)]
    for start, end in zip(cuts, cuts[1:]):
        places = torch.arange(start, end)
        slots = torch.cat([places + 4 + 40 * i for i in range(twins)])
        cache.begin_step(StepLayout([end - start] * twins, [end] * twins, tables, slots))
        rows.append(model(ids[start:end].repeat(twins), places.repeat(twins), cache)[start - end :])
    return torch.cat(rows)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("kind", NARROW)
def test_where_a_prompt_is_cut_changes_nothing(kind, window):
    """A prompt reads what was stored of it, as a decode step does: so chunks and prefix hits give the same."""
    model = Transformer.random(SMALL)
    for p in model.parameters():
        p.mul_(4 if p.ndim == 2 else 1)
    rules = [AttentionRule(8**-0.5), AttentionRule(8**-0.5, window)]
    config, ids = with_rules(SMALL, rules), torch.arange(40) * 5 % 64
    whole = steps(model, config, kind, [0, 40])
    rounded = model(ids, torch.arange(40), RoundingCache(kind, config))
    torch.testing.assert_close(whole, rounded, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(steps(model, config, kind, [0, 7, 16, 39, 40]), whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(steps(model, config, kind, [0, 16, 40], 3), whole, rtol=1e-4, atol=1e-4)
    many = [0, 30, *range(31, 41)]
    torch.testing.assert_close(steps(model, config, kind, many), whole, rtol=1e-4, atol=1e-4)
    exact = steps(model, config, "auto", [0, 40])
    assert (whole - exact).abs().max() > 1e-4 and (whole - exact).norm() < 0.1 * exact.norm()


def test_an_unknown_name_is_one_line():
    with pytest.raises(ValueError, match="unknown kv_cache_dtype 'int3': use auto, fp8, int8_per_token_head"):
        QuantizedKVStorage(SMALL, 4, kv_cache_dtype="int3")
