"""Attention over scattered blocks: every reading equals plain attention, and unused memory cannot matter."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase2_attention_kvcache.model.caches import AttentionRule, NoCache
from phase2_attention_kvcache.model.config import ModelConfig
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import (
    BlockManager,
    BlockTable,
    KVStorage,
    PagedKVCache,
    StepLayout,
    compiled_kernel,
    paged_attention_loops,
    paged_attention_vectorised,
)
from tests.properties import contrasted, plain_attention, rules, with_rules

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
needs_kernel = pytest.mark.skipif(compiled_kernel() is None, reason="needs numba")


def make_config(num_heads, num_kv_heads, head_dim, num_layers=1, **changes):
    settings = dict(
        name="test", family="llama", vocab_size=97, d_model=32, num_layers=num_layers, num_heads=num_heads,
        num_kv_heads=num_kv_heads, head_dim=head_dim, d_ff=48, max_context=256, tied=True, attention_bias=False,
        mlp_bias=False,
    ) | changes  # fmt: skip
    return ModelConfig(**settings)


@dataclass
class Step:
    """A step's requests in blocks drawn from all over a memory full of NaN.

    Where a window has left blocks behind, tables have the null block, as the block manager leaves it: NaN, too.
    """

    query_lens: list[int]
    context_lens: list[int]
    tables: list[list[int]]
    num_blocks: int
    block_size: int
    q: torch.Tensor
    keys: list[torch.Tensor]  # of each request, all its tokens
    values: list[torch.Tensor]
    rule: AttentionRule

    @classmethod
    def make(cls, lens, block_size, heads, kv_heads, dim, dtype, seed, scale=1.0, rule=None):
        """lens: (tokens computed before, new tokens) of each request."""
        torch.manual_seed(seed)
        query_lens, context_lens = [n for _, n in lens], [p + n for p, n in lens]
        needed = [-(-c // block_size) for c in context_lens]
        num_blocks = sum(needed) + 4
        order = (torch.randperm(num_blocks - 1) + 1).tolist()  # any block but the null block
        tables = [[order.pop() for _ in range(n)] for n in needed]
        q = (scale * torch.randn(sum(query_lens), heads, dim)).to(dtype)
        keys, values = ([torch.randn(c, kv_heads, dim).to(dtype) for c in context_lens] for _ in range(2))
        rule = rule or AttentionRule(dim**-0.5)
        for table, (past, _) in zip(tables, lens):
            skipped = rule.first_seen(past) // block_size
            table[:skipped] = [0] * skipped
        return cls(query_lens, context_lens, tables, num_blocks, block_size, q, keys, values, rule)

    def slots(self, request, first=0):
        size = self.block_size
        return [
            self.tables[request][t // size] * size + t % size
            for t in range(first, self.context_lens[request])
        ]

    def starts(self):
        """First new token of each request."""
        return [c - n for c, n in zip(self.context_lens, self.query_lens)]

    def blocks(self):
        """All tokens written that have a block: k_cache, v_cache."""
        shape = (self.num_blocks, self.block_size, *self.keys[0].shape[1:])
        caches = [torch.full(shape, math.nan, dtype=self.q.dtype) for _ in range(2)]
        for cache, texts in zip(caches, (self.keys, self.values)):
            for i, text in enumerate(texts):
                first = self.held_from(i)
                cache.view(-1, *shape[2:])[self.slots(i, first)] = text[first:]
        return caches

    def held_from(self, request):
        """The first token that is in a block of its own."""
        return self.tables[request].count(0) * self.block_size

    def layout(self):
        slots = [s for i, first in enumerate(self.starts()) for s in self.slots(i, first)]
        return StepLayout(self.query_lens, self.context_lens, self.tables, torch.tensor(slots))

    def fill(self, cache, layer=0):
        """Write what was computed before this step, and NaN everywhere else."""
        cache.storage.data.fill_(math.nan)
        for i, first in enumerate(self.starts()):
            held = self.held_from(i)
            slots = self.slots(i, held)[: first - held]
            for blocks, text in (
                (cache.storage.k_cache, self.keys[i]),
                (cache.storage.v_cache, self.values[i]),
            ):
                blocks[layer].view(-1, *text.shape[1:])[slots] = text[held:first]

    def new(self, texts):
        """The new tokens' part of keys or values, flat."""
        return torch.cat([text[first:] for text, first in zip(texts, self.starts())])

    def expected(self):
        rows, out = 0, []
        for n, keys, values in zip(self.query_lens, self.keys, self.values):
            out.append(plain_attention(self.q[rows : rows + n], keys, values, self.rule))
            rows += n
        return torch.cat(out)

    def padded_tables(self, fill=0):
        width = max(map(len, self.tables)) + 2
        return torch.tensor([t + [fill] * (width - len(t)) for t in self.tables], dtype=torch.int32)


def assert_close(got, expected, dtype=torch.float32):
    got = got.double().numpy() if isinstance(got, torch.Tensor) else np.asarray(got, dtype=np.float64)
    np.testing.assert_allclose(got, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


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
seeds = st.integers(0, 2**31)


@given(lens=requests, size=block_sizes, heads=heads, seed=seeds)
@settings(max_examples=25)
def test_loops(lens, size, heads, seed):
    step = Step.make(
        [(p, 1) for p, _ in lens[:2]], size, heads[0] * heads[1], heads[0], 8, torch.float32, seed
    )
    k_cache, v_cache = (c.tolist() for c in step.blocks())
    out = [
        paged_attention_loops(step.q[i].tolist(), k_cache, v_cache, table, context_len)
        for i, (table, context_len) in enumerate(zip(step.tables, step.context_lens))
    ]
    assert_close(out, step.expected())


@given(lens=requests, size=block_sizes, heads=heads, dim=dims, seed=seeds)
@settings(max_examples=40)
def test_vectorised(lens, size, heads, dim, seed):
    step = Step.make(lens, size, heads[0] * heads[1], heads[0], dim, torch.float32, seed)
    out = paged_attention_vectorised(
        step.q, *step.blocks(), step.padded_tables(), step.query_lens, step.context_lens
    )
    assert_close(out, step.expected())


def decode_compiled(step, num_splits):
    bits = [c.view(torch.uint16) if c.dtype == torch.bfloat16 else c for c in step.blocks()]
    out = torch.full(step.q.shape, math.nan)
    from phase3_paged_attention.compiled.cpu_kernel import as_numbers

    compiled_kernel()(
        step.q.float().numpy(), *(b.numpy() for b in bits), step.padded_tables().numpy(),
        np.array(step.context_lens, dtype=np.int32), *as_numbers(step.rule), num_splits, out.numpy(),
    )  # fmt: skip
    return out


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@given(
    lens=requests, size=block_sizes, heads=heads, dim=dims, rule=rules, seed=seeds, num_splits=st.integers(1, 5)
)  # fmt: skip
@settings(max_examples=40)
def test_compiled_kernel(dtype, lens, size, heads, dim, rule, seed, num_splits):
    lens = [(p, 1) for p, _ in lens]
    step = Step.make(lens, size, heads[0] * heads[1], heads[0], dim, DTYPES[dtype], seed, rule=rule)
    out = decode_compiled(step, num_splits)
    assert_close(out, step.expected())  # inside, all is float32: no more than the inputs is rounded


@needs_kernel
def test_compiled_kernel_with_scores_far_apart():
    """exp of these scores would overflow: the largest has to be taken off, within parts and between them."""
    step = Step.make([(40, 1), (7, 1)], 4, 2, 1, 16, torch.float32, seed=1, scale=300.0)
    for num_splits in range(1, 6):
        np.testing.assert_allclose(decode_compiled(step, num_splits).numpy(), step.expected(), atol=2e-3)


def attend(step, dtype, compiled, layer=0, num_layers=1):
    _, kv_heads, dim = step.keys[0].shape
    plain = AttentionRule(step.rule.scale, None, step.rule.softcap)
    rules = [step.rule if i == layer else plain for i in range(num_layers)]
    config = with_rules(make_config(step.q.shape[1], kv_heads, dim), rules)
    cache = PagedKVCache(config, step.num_blocks, step.block_size, dtype, use_kernel=compiled)
    step.fill(cache, layer)
    cache.begin_step(step.layout())
    return cache, cache.attend(layer, step.q, step.new(step.keys), step.new(step.values))


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_kernel), False])
@given(
    lens=requests, size=block_sizes, heads=heads, dim=dims, dtype=st.sampled_from([*DTYPES]), rule=rules, seed=seeds
)  # fmt: skip
@settings(max_examples=40)
def test_paged_cache(compiled, lens, size, heads, dim, dtype, rule, seed):
    """Beside a layer that sees everything: it must not be told how far the other one looks."""
    dtype = DTYPES[dtype]
    step = Step.make(lens, size, heads[0] * heads[1], heads[0], dim, dtype, seed, rule=rule)
    cache, out = attend(step, dtype, compiled, layer=1, num_layers=2)
    assert out.dtype == dtype
    assert_close(out, step.expected(), dtype)
    # Stored where the table says, and nowhere else.
    for stored, wanted in zip((cache.storage.k_cache[1], cache.storage.v_cache[1]), step.blocks()):
        assert torch.equal(stored.nan_to_num(7777.0), wanted.nan_to_num(7777.0))


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_kernel), False])
def test_a_request_that_went_wrong_harms_only_itself(compiled):
    """One user's keys overflowed. The step must not stop for it, and the others must not notice."""
    step = Step.make([(9, 1), (6, 1), (12, 1)], 4, 4, 2, 8, torch.float32, seed=8)
    expected = step.expected()
    step.keys[1][2:4] = math.nan
    _, out = attend(step, torch.float32, compiled)
    assert_close(out[[0, 2]], expected[[0, 2]])
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
    for name, (heads, kv_heads, dim, changes) in shapes.items():
        built[name] = contrasted(
            Transformer.random(make_config(heads, kv_heads, dim, num_layers=3, **changes))
        )
    return built


@pytest.mark.parametrize("name", ["llama", "gpt2", "windows", "local and global"])
@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_kernel), False])
@given(
    lengths=st.lists(st.integers(1, 45), min_size=1, max_size=4),
    chunks=st.lists(st.sampled_from([1, 1, 2, 3, 7, 16, 50]), min_size=1, max_size=6),
    size=block_sizes,
    seed=seeds,
)
@settings(max_examples=8)
def test_a_model_in_chunks_over_blocks_is_the_model_at_once(
    models, name, compiled, lengths, chunks, size, seed
):
    model = models[name]
    torch.manual_seed(seed)
    texts = [torch.randint(0, 97, (n,)).tolist() for n in lengths]
    num_blocks = sum(-(-n // size) for n in lengths) + 1
    cache = PagedKVCache(model.config, num_blocks, size, use_kernel=compiled)
    cache.storage.data.fill_(math.nan)
    with torch.inference_mode():
        manager = BlockManager(num_blocks, size, enable_prefix_caching=False)
        got = run_in_chunks(model, cache, manager, texts, chunks)
        for text, logits in zip(texts, got):
            whole = model.logits(model(torch.tensor(text), torch.arange(len(text)), NoCache(model.config)))
            # With weights ten times as large, what float32 rounds grows through softmax and layers.
            torch.testing.assert_close(logits, whole, atol=2e-4, rtol=2e-4)


def test_keys_in_another_dtype_are_refused_and_not_stored_as_other_numbers():
    storage = KVStorage(make_config(2, 2, 8), num_blocks=3, block_size=4)
    k = torch.ones(4, 2, 8, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError):
        storage.write(0, torch.arange(4, 8), k, k)
