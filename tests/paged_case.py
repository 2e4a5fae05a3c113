"""A step whose keys and values lie in blocks all over a memory full of NaN, and the definition in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from phase2_attention_kvcache.model.caches import AttentionRule
from phase2_attention_kvcache.model.config import ModelConfig
from phase3_paged_attention.paging import StepLayout
from tests.properties import plain_attention, with_rules

# Blocks of NaN before and behind the pool. A table entry that points there is outside, and harmless.
GUARD = 3
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
# Between two ways of adding the same numbers; where weights are rounded to 16 bits before they are used, that.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def bits(x: Tensor) -> Tensor:
    """The same memory as whole numbers: they compare NaN with NaN, and fp8 can be copied about."""
    return x.view(BITS[x.element_size()])


@dataclass
class PagedCase:
    """A step's requests.

    Args:
        query_lens, context_lens: new tokens, and all tokens, of each request. (A context of 0: padding.)
        kv_heads, group: KV heads, and query heads on each.
        dtype: of the queries; cache_dtype: of the cache, the same if not given.
        stretch: multiplies the queries. Large ones make scores that lie far apart.
        scale, window, softcap: as for the kernels; scale: 1 / sqrt(dim) if not given. Blocks that a window has left are gone: tables have one of NaN there.
    """

    query_lens: Sequence[int]
    context_lens: Sequence[int]
    kv_heads: int = 2
    group: int = 2
    dim: int = 32
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None
    seed: int = 0
    stretch: float = 1.0
    window: int | None = None
    softcap: float | None = None
    scale: float | None = None
    device: str = "cpu"
    tables: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.cache_dtype = self.cache_dtype or self.dtype
        self.scale = self.scale or self.dim**-0.5
        needed = [-(-c // self.block_size) for c in self.context_lens]
        self.num_blocks = sum(needed) + 3
        order = torch.randperm(self.num_blocks, generator=generator).tolist()
        self.tables = [[order.pop() for _ in range(n)] for n in needed]
        self.held_from = []  # the first token that is in a block of its own
        for table, new, context in zip(self.tables, self.query_lens, self.context_lens):
            skipped = max(0, context - new - (self.window or context) + 1) // self.block_size
            table[:skipped] = order[:1] * skipped
            self.held_from.append(skipped * self.block_size)
        heads = (self.kv_heads * self.group, self.kv_heads)

        def random(n: int, h: int) -> Tensor:
            return torch.randn(n, h, self.dim, generator=generator)

        self.q = (self.stretch * random(sum(self.query_lens), heads[0])).to(self.dtype).to(self.device)
        texts = [[random(c, heads[1]).to(self.dtype) for c in self.context_lens] for _ in range(2)]
        self.given = [[t.to(self.device) for t in of_kind] for of_kind in texts]  # before they are stored
        self.stored = [[t.to(self.cache_dtype).to(self.device) for t in of_kind] for of_kind in texts]
        # Views of one large tensor, as PagedKVCache has them: [k and v, layers, blocks, ...].
        shape = (2, 2, self.num_blocks + 2 * GUARD, self.block_size, self.kv_heads, self.dim)
        self.data = torch.full(shape, math.nan).to(self.cache_dtype).to(self.device)
        self.k_cache, self.v_cache = (self.data[i, 1, GUARD:-GUARD] for i in range(2))

    @classmethod
    def of(cls, requests: Sequence[tuple[int, int]], new_too: bool = True, **settings) -> Self:
        """Requests as (tokens before, new tokens), in their blocks; `new_too`: the new tokens as well."""
        return cls([new for _, new in requests], [sum(r) for r in requests], **settings).fill(new_too)

    # ------------------------------------------------------------------ places

    def slots(self, request: int) -> list[int]:
        """Of all its tokens."""
        size, table = self.block_size, self.tables[request]
        return [table[t // size] * size + t % size for t in range(self.context_lens[request])]

    @property
    def new_slots(self) -> Tensor:
        """Of the step's tokens."""
        slots = [s for i, n in enumerate(self.query_lens) for s in self.slots(i)[self.context_lens[i] - n :]]
        return torch.tensor(slots, dtype=torch.int64, device=self.device)

    def new(self, texts: Sequence[Tensor]) -> Tensor:
        """The new tokens' part of keys or values, one request after the other."""
        return torch.cat([t[len(t) - n :] for t, n in zip(texts, self.query_lens)])

    def block_tables(self, dtype: torch.dtype = torch.int32) -> Tensor:
        """[B, most blocks + 2]. Behind a request's blocks stand numbers that point outside the pool."""
        width = max(map(len, self.tables), default=0) + 2
        outside = [self.num_blocks + 1, -2, self.num_blocks, -1]
        rows = [t + [outside[(i + j) % 4] for j in range(width - len(t))] for i, t in enumerate(self.tables)]
        return torch.tensor(rows, dtype=dtype, device=self.device).reshape(len(rows), width)

    def lens(self, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.tensor(self.context_lens, dtype=dtype, device=self.device)

    @property
    def cu_query_lens(self) -> Tensor:
        starts = torch.tensor([0, *self.query_lens]).cumsum(0)
        return starts.to(torch.int32).to(self.device)

    def layout(self) -> StepLayout:
        return StepLayout(list(self.query_lens), list(self.context_lens), self.tables, self.new_slots)

    @property
    def config(self) -> ModelConfig:
        """Of a model with two layers, of which the second has the window."""
        rules = [AttentionRule(self.scale, window, self.softcap) for window in (None, self.window)]
        return with_rules(model_config(self.kv_heads * self.group, self.kv_heads, self.dim), rules)

    # ------------------------------------------------------------------ contents

    def fill(self, new_too: bool = True) -> Self:
        """Write the tokens into their blocks; without the step's own ones if not `new_too`."""
        for cache, texts in zip((self.k_cache, self.v_cache), self.stored):
            flat = bits(cache).view(-1, self.kv_heads, self.dim)
            for i, text in enumerate(texts):
                held = slice(self.held_from[i], len(text) if new_too else len(text) - self.query_lens[i])
                slots = torch.tensor(self.slots(i)[held], dtype=torch.int64, device=self.device)
                flat[slots] = bits(text)[held]
        return self

    def expected(self, scale: float | None = None) -> Tensor:
        """[N, H, D] in float64, from what is stored."""
        rule, out = AttentionRule(scale or self.scale, self.window, self.softcap), []
        for q, keys, values in zip(self.q.split(list(self.query_lens)), *self.stored):
            out.append(plain_attention(q, keys.double(), values.double(), rule))
        return torch.cat(out) if out else self.q.double()

    def assert_right(self, out: Tensor, scale: float | None = None) -> None:
        assert out.dtype == self.dtype and out.shape == self.q.shape
        assert_near(out, self.expected(scale), TOLERANCE[self.dtype])


def model_config(
    num_heads: int, num_kv_heads: int, head_dim: int, num_layers: int = 2, **changes
) -> ModelConfig:
    shape = dict(
        name="test", family="llama", vocab_size=97, d_model=32, num_layers=num_layers, num_heads=num_heads,
        num_kv_heads=num_kv_heads, head_dim=head_dim, d_ff=48, max_context=256, tied=True, attention_bias=False,
        mlp_bias=False,
    ) | changes  # fmt: skip
    return ModelConfig(**shape)


def assert_near(got: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(got.double(), expected.double(), atol=tolerance, rtol=tolerance)
