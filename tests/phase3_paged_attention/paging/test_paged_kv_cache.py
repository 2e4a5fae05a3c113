"""Attention over scattered blocks: every reading equals plain attention, and unused memory cannot matter."""

import math
from itertools import chain
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase2_attention_kvcache.model.caches import AttentionRule, NoCache
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.compiled.arrays import stored_bits
from phase3_paged_attention.paging import (
    BlockManager,
    BlockTable,
    KVStorage,
    PagedKVCache,
    StepLayout,
    compiled_kernel,
    paged_attention_loops,
    paged_attention_vectorised,
    prompt_attention,
)
from phase4_scheduler.cpu import backend, linear, prepare
from phase4_scheduler.cpu.choice import ROWS
from phase4_scheduler.cpu.linear import FEW
from tests.paged_case import PagedCase, assert_near, bits, model_config
from tests.properties import contrasted, rules

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

    n, num_heads, dim = case.q.shape
    rows = np.arange(n - 1, -1, -1)  # among other rows and heads, as a step has them
    q, out = np.zeros((n + 2, num_heads + 2, dim), np.float32), torch.zeros(n + 2, num_heads, dim)
    q[rows, :num_heads] = case.q.float()
    compiled_kernel()(
        q, rows, stored_bits(case.k_cache), stored_bits(case.v_cache), case.block_tables().numpy(),
        case.lens().numpy(), *as_numbers(AttentionRule(case.scale, case.window, case.softcap)), num_shares, out.numpy(),
    )  # fmt: skip
    return out[rows]


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


# ---------------------------------------------------------------------- a whole model


def run_in_chunks(model, cache, manager, texts, chunks):
    """Feed each text chunk by chunk; chunks[i] are sizes, taken in turn. Returns logits of all tokens."""
    tables, done, logits = [BlockTable() for _ in texts], [0] * len(texts), [[] for _ in texts]
    turn = 0
    while any(d < len(t) for d, t in zip(done, texts)):
        step = []
        for i, text in enumerate(texts):
            n = min(chunks[(turn + i) % len(chunks)], len(text) - done[i])
            if n:
                assert manager.allocate(tables[i], text, done[i] + n)
                step.append((i, done[i], n))
        turn += 1
        size = cache.block_size
        ids = [x for i, first, n in step for x in texts[i][first : first + n]]
        positions = [t for _, first, n in step for t in range(first, first + n)]
        slots = [
            tables[i].block_ids[t // size] * size + t % size
            for i, first, n in step
            for t in range(first, first + n)
        ]
        cache.begin_step(
            StepLayout(
                [n for _, _, n in step],
                [first + n for _, first, n in step],
                [tables[i].block_ids for i, _, _ in step],
                torch.tensor(slots),
            )
        )
        out = model.logits(model(torch.tensor(ids), torch.tensor(positions), cache))
        for (i, first, n), rows in zip(step, out.split([n for _, _, n in step])):
            logits[i].append(rows)
            done[i] = first + n
    return [torch.cat(rows) for rows in logits]


@pytest.fixture(scope="module")
def models():
    shapes = {
        "llama": (4, 2, 8, {}),
        "gpt2": (4, 4, 8, dict(family="gpt2", attention_bias=True, mlp_bias=True)),
        "windows": (4, 2, 8, dict(family="mistral", windows=(6, 9, 6))),
        "local and global": (4, 2, 8, dict(windows=(6, None, 6), attn_softcap=3.0, query_pre_attn_scalar=20)),
    }
    built = {}
    with pytest.MonkeyPatch.context() as change:
        change.setattr(backend, "SMALL", 0)  # numbers of weights
        for name, (heads, kv_heads, dim, changes) in shapes.items():
            model = contrasted(
                Transformer.random(model_config(heads, kv_heads, dim, num_layers=3, d_ff=64, **changes))
            )
            built[name, "gather"] = built[name, "kernel"] = model
            for way in ("few rows", "torch"):
                fastest = lambda *args, way=way: {w: [1e6 * (w != way)] * len(ROWS) for w in args[3]}  # noqa: E731
                change.setattr(linear, "measured_times", fastest)
                built[name, way] = prepare(model)
                assert [block.most_few_rows for block in built[name, way].blocks] == [
                    FEW * (way == "few rows")
                ] * 3
    return built


@pytest.mark.parametrize("name", ["llama", "gpt2", "windows", "local and global"])
@pytest.mark.parametrize(
    "how", ["gather", *(pytest.param(x, marks=needs_kernel) for x in ("kernel", "few rows", "torch"))]
)
@given(
    lengths=st.lists(st.integers(1, 45), min_size=1, max_size=4),
    chunks=st.lists(st.sampled_from([1, 1, 2, 3, 7, 16, 50]), min_size=1, max_size=6),
    size=block_sizes,
    seed=seeds,
)
@settings(max_examples=8)
def test_a_model_in_chunks_over_blocks_is_the_model_at_once(models, name, how, lengths, chunks, size, seed):
    """With attention in torch or in the kernel; or all of a layer compiled, with either way of multiplying."""
    model, plain = models[name, how], models[name, "gather"]
    torch.manual_seed(seed)
    texts = [torch.randint(0, 97, (n,)).tolist() for n in lengths]
    num_blocks = sum(-(-n // size) for n in lengths) + 1
    cache = PagedKVCache(model.config, num_blocks, size, use_kernel=how != "gather")
    cache.storage.data.fill_(math.nan)
    with torch.inference_mode():
        manager = BlockManager(num_blocks, size, enable_prefix_caching=False)
        got = run_in_chunks(model, cache, manager, texts, chunks)
        for text, logits in zip(texts, got):
            whole = plain.logits(plain(torch.tensor(text), torch.arange(len(text)), NoCache(plain.config)))
            # With weights ten times as large, what float32 rounds grows through softmax and layers.
            torch.testing.assert_close(logits, whole, atol=2e-4, rtol=2e-4)


def test_keys_in_another_dtype_are_refused_and_not_stored_as_other_numbers():
    storage = KVStorage(model_config(2, 2, 8), num_blocks=3, block_size=4)
    k = torch.ones(4, 2, 8, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError):
        storage.write(0, torch.arange(4, 8), k, k)
