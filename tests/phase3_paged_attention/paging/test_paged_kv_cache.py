"""Attention over scattered blocks: every reading equals plain attention, and unused memory cannot matter."""

import math
from itertools import chain
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase2_attention_kvcache.model.caches import AttentionRule
from phase3_paged_attention.paging import (
    KVStorage,
    PagedKVCache,
    compiled_kernel,
    paged_attention_loops,
    paged_attention_vectorised,
    prompt_attention,
)
from phase3_paged_attention.paging.kv_storage import stored_bits
from tests.paged_case import PagedCase, assert_near, bits, model_config
from tests.properties import rules

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
needs_kernel = pytest.mark.skipif(compiled_kernel() is None, reason="needs numba")


heads = st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 3, 4, 7, 8, 16]))  # KV heads, group
dims = st.sampled_from([8, 9, 17, 32, 64, 65, 128])
block_sizes = st.sampled_from([1, 2, 3, 5, 8, 16, 32])
# Fresh prompts, chunks behind something, single tokens (a fresh prompt of one among them).
request = st.one_of(
    st.tuples(st.just(0), st.integers(1, 40)),
    st.tuples(st.integers(1, 70), st.integers(2, 20)),
    st.tuples(st.integers(0, 70), st.just(1)),
)
requests = st.lists(request, min_size=1, max_size=6)
# Neighbours with equally many new tokens, and equally many before them or more and more.
alike = st.builds(
    lambda one, number, more: [(one[0] + i * more, one[1]) for i in range(number)],
    request, st.sampled_from([1, 1, 2, 5]), st.sampled_from([0, 0, 3]),
)  # fmt: skip
seeds = st.integers(0, 2**31)


def make(lens, size, heads, dim, seed, rule=None, **more) -> PagedCase:
    """A step in blocks. lens: (tokens before, new tokens) of each request. heads: KV heads, and query heads on each."""
    of_rule = rule._asdict() if rule else {}
    return PagedCase.of(
        lens, kv_heads=heads[0], group=heads[1], dim=dim, block_size=size, seed=seed, **of_rule, **more
    )


@given(lens=requests, size=block_sizes, heads=heads, seed=seeds)
@settings(max_examples=25)
def test_loops(lens, size, heads, seed):
    case = make([(p, 1) for p, _ in lens[:2]], size, heads, 8, seed)
    k_cache, v_cache = case.k_cache.tolist(), case.v_cache.tolist()
    out = [
        paged_attention_loops(q.tolist(), k_cache, v_cache, table, context_len)
        for q, table, context_len in zip(case.q, case.tables, case.context_lens)
    ]
    case.assert_right(torch.tensor(out))


@given(lens=requests, size=block_sizes, heads=heads, dim=dims, seed=seeds)
@settings(max_examples=40)
def test_vectorised(lens, size, heads, dim, seed):
    case = make(lens, size, heads, dim, seed)
    step = case.q, case.k_cache, case.v_cache, case.block_tables(), case.query_lens, case.context_lens
    case.assert_right(paged_attention_vectorised(*step))


def decode_compiled(case, num_shares):
    from phase3_paged_attention.compiled.cpu_kernel import as_numbers

    out = torch.full(case.q.shape, math.nan)
    compiled_kernel()(
        case.q.float().contiguous().numpy(), stored_bits(case.k_cache), stored_bits(case.v_cache), case.block_tables().numpy(),
        case.lens().numpy(), *as_numbers(AttentionRule(case.scale, case.window, case.softcap)), num_shares, out.numpy(),
    )  # fmt: skip
    return out


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@given(
    lens=requests, size=block_sizes, heads=heads, dim=dims, rule=rules, seed=seeds, num_shares=st.integers(1, 5)
)  # fmt: skip
@settings(max_examples=40)
def test_compiled_kernel(dtype, lens, size, heads, dim, rule, seed, num_shares):
    case = make([(p, 1) for p, _ in lens], size, heads, dim, seed, rule, dtype=DTYPES[dtype])
    # Inside, all is float32: no more than the inputs is rounded.
    assert_near(decode_compiled(case, num_shares), case.expected())


@needs_kernel
def test_compiled_kernel_with_scores_far_apart():
    """exp of these scores would overflow: the largest has to be taken off, within parts and between them."""
    case = make([(40, 1), (7, 1)], 4, (1, 2), 16, seed=1, stretch=300.0)
    for num_shares in range(1, 6):
        assert_near(decode_compiled(case, num_shares), case.expected(), 2e-3)


def attend(case, compiled):
    """The new tokens through the second layer of a cache that holds the others, and NaN everywhere else."""
    cache = PagedKVCache(case.config, case.num_blocks, case.block_size, case.dtype, use_kernel=compiled)
    cache.storage.data.fill_(math.nan)
    for ours, blocks in zip((cache.storage.k_cache, cache.storage.v_cache), (case.k_cache, case.v_cache)):
        ours[1].copy_(blocks)
    cache.begin_step(case.layout())
    return cache, cache.attend(1, case.q, *map(case.new, case.given))


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_kernel), False])
@given(
    lens=st.lists(alike, min_size=1, max_size=4), at_once=st.sampled_from([30, 100, 1024]),
    size=block_sizes, heads=heads, dim=dims, dtype=st.sampled_from([*DTYPES]), rule=rules, seed=seeds,
)  # fmt: skip
@settings(max_examples=40)
def test_paged_cache(compiled, lens, at_once, size, heads, dim, dtype, rule, seed):
    """Beside a layer that sees everything: it must not be told how far the other one looks."""
    case = make([*chain(*lens)], size, heads, dim, seed, rule, dtype=DTYPES[dtype], new_too=False)
    with patch.object(prompt_attention, "TOKENS_AT_ONCE", at_once):
        cache, out = attend(case, compiled)
    case.assert_right(out)
    # Stored where the table says, and nowhere else.
    case.fill()
    assert torch.equal(bits(cache.storage.k_cache[1]), bits(case.k_cache))
    assert torch.equal(bits(cache.storage.v_cache[1]), bits(case.v_cache))


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_kernel), False])
def test_a_request_that_went_wrong_harms_only_itself(compiled):
    """One user's keys overflowed. The step must not stop for it, and the others must not notice."""
    case = make([(9, 1), (6, 1), (12, 1)], 4, (2, 2), 8, seed=8, new_too=False)
    expected = case.expected()
    case.stored[0][1][2:4] = math.nan
    _, out = attend(case.fill(new_too=False), compiled)
    assert_near(out[[0, 2]], expected[[0, 2]])
    assert compiled or out[1].isnan().all()  # (the kernel's fast arithmetic promises nothing of NaN)


def test_keys_in_another_dtype_are_refused_and_not_stored_as_other_numbers():
    storage = KVStorage(model_config(2, 2, 8), num_blocks=3, block_size=4)
    k = torch.ones(4, 2, 8, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError):
        storage.write(0, torch.arange(4, 8), k, k)
