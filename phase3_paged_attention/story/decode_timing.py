"""The time of attention in one decode step: gathered, in one row, and in place."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.machine import time_calls
from phase2_attention_kvcache.model import GPT2_124M, ModelConfig
from phase3_paged_attention.paging import PagedKVCache, StepLayout, compiled_kernel

BLOCK = 16
Prepare = Callable[[int], Callable[[], object]]  # part of the memory -> what is timed on it


@dataclass(frozen=True)
class DecodeTimes:
    """Seconds of one layer's attention in a decode step; None where the compiled kernel cannot run.

    Attributes:
        context: tokens of each request.
        kv_bytes: bytes of keys and values that every implementation has to read.
        copy: copying all blocks into existing rows, and nothing else.
        gather: copying, then attending with torch.
        contiguous: attending with torch, on contiguous rows.
        in_place: the compiled kernel on scattered blocks.
    """

    context: int
    kv_bytes: int
    copy: float
    gather: float
    contiguous: float
    in_place: float | None = None


class DecodeTimer:
    """A layer's cache for `batch` requests of up to `longest` tokens, in which decode steps are timed.

    Shorter contexts use the same memory, each repeat another part of it. So the numbers come from memory,
    as on a server, and not from the processor's cache.
    """

    def __init__(self, batch: int, longest: int, dtype: torch.dtype, device: str, seed: int = 0) -> None:
        config = ModelConfig(**vars(GPT2_124M) | {"num_layers": 1})
        self.batch, self.config, self.device = batch, config, device
        self.num_blocks = batch * longest // BLOCK
        self.gathering = PagedKVCache(config, self.num_blocks, BLOCK, dtype, device, use_kernel=False)
        torch.manual_seed(seed)
        self.gathering.storage.data.normal_()
        self.compiled: PagedKVCache | None = None
        if compiled_kernel() is not None and device == "cpu" and dtype != torch.float16:
            self.compiled = PagedKVCache(config, self.num_blocks, BLOCK, dtype, device)
            self.compiled.storage.data.copy_(self.gathering.storage.data)
        on = dict(device=device, dtype=dtype)
        self.q = torch.randn(batch, config.num_heads, config.head_dim, **on)
        self.k, self.v = torch.randn(2, batch, config.num_kv_heads, config.head_dim, **on)

    @torch.inference_mode()
    def measure(self, context: int, repeats: int = 8) -> DecodeTimes:
        """Time a step in which every request has `context` tokens, which divide the memory into equal parts."""
        scattered = torch.randperm(self.num_blocks).view(-1, self.batch, context // BLOCK)
        shape = (self.batch, context, self.config.num_kv_heads, self.config.head_dim)
        blocks_k, blocks_v = self.gathering.storage.data[:, 0]

        flat = scattered.flatten(1).to(self.device)
        row_k, row_v = (torch.zeros_like(blocks_k[: flat.shape[1]]) for _ in range(2))

        def copy(i: int) -> Callable[[], object]:
            return lambda: (
                torch.index_select(blocks_k, 0, flat[i], out=row_k),
                torch.index_select(blocks_v, 0, flat[i], out=row_v),
            )

        def contiguous(i: int) -> Callable[[], object]:
            # The same memory, seen as long rows.
            part = slice(i * self.batch * context, (i + 1) * self.batch * context)
            keys, values = (t.flatten(0, 1)[part].view(shape).transpose(1, 2) for t in (blocks_k, blocks_v))
            return lambda: F.scaled_dot_product_attention(self.q[:, :, None], keys, values)

        def fastest(prepare: Prepare) -> float:
            prepare(0)()
            return min(
                time_calls(prepare(i % len(scattered)), self.device, repeats=1, warmup=0)[0]
                for i in range(repeats)
            )

        return DecodeTimes(
            context,
            2 * self.batch * context * shape[2] * shape[3] * self.q.element_size(),
            fastest(copy),
            fastest(self._paged(self.gathering, scattered)),
            fastest(contiguous),
            fastest(self._paged(self.compiled, scattered)) if self.compiled else None,
        )

    def _paged(self, cache: PagedKVCache, tables: Tensor) -> Prepare:
        context = tables.shape[2] * BLOCK

        def prepare(i: int) -> Callable[[], object]:
            lists = tables[i].tolist()
            last = [t[-1] * BLOCK + BLOCK - 1 for t in lists]
            slots = torch.tensor(last, device=self.device)
            cache.begin_step(StepLayout([1] * self.batch, [context] * self.batch, lists, slots))
            return lambda: cache.attend(0, self.q, self.k, self.v)

        return prepare
