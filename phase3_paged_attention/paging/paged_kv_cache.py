"""`PagedKVCache`: the third object at the seam. It attends over keys and values of many requests, in blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from phase2_attention_kvcache.model.caches import causal_attention
from phase2_attention_kvcache.model.config import ModelConfig
from phase3_paged_attention.paging.block_table import BlockCopy
from phase3_paged_attention.paging.cpu_decode import CompiledDecode, GatherDecode, compiled_kernel
from phase3_paged_attention.paging.kv_storage import KVStorage
from phase3_paged_attention.paging.paged_cache import StepLayout, pad_tables


class PagedKVCache:
    """A paged cache (see `PagedCache`) in torch, with a compiled kernel for decode steps on a CPU.

    Args:
        config, num_blocks, block_size, dtype, device, num_swap_blocks: as for `KVStorage`.
        use_kernel: False copies blocks together to decode, even where the compiled kernel could run.

    Attributes:
        storage: the tensors.
        compiled: whether the compiled kernel decodes.
        layout: of the step that was begun last.
        block_tables, context_lens: of its `decodes`, int32: [B, most blocks] with 0 behind a table's end, and [B].
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        num_swap_blocks: int = 0,
        use_kernel: bool = True,
    ) -> None:
        self.storage = KVStorage(config, num_blocks, block_size, dtype, device, num_swap_blocks)
        self.num_blocks, self.block_size = num_blocks, block_size
        kernel = compiled_kernel() if use_kernel and CompiledDecode.can_read(self.storage) else None
        self.compiled = kernel is not None
        self._decoder = CompiledDecode(self.storage, kernel) if kernel else GatherDecode(self.storage)
        self.layout: StepLayout | None = None

    def apply_copies(self, copies: Sequence[BlockCopy]) -> None:
        self.storage.apply_copies(copies)

    def begin_step(self, layout: StepLayout) -> None:
        """Say where the tokens of the next step lie."""
        self.layout = layout
        # For prompts of which a part was computed before: their blocks, on the device, once for all layers.
        self._prompt_blocks = {
            i: torch.tensor(
                layout.block_tables[i][: -(-layout.context_lens[i] // self.block_size)],
                device=self.storage.device,
            )
            for i, _ in layout.prefills
            if layout.context_lens[i] > layout.query_lens[i]
        }
        if layout.decodes:
            self.block_tables = pad_tables([layout.block_tables[i] for i in layout.decodes])
            self.context_lens = np.array([layout.context_lens[i] for i in layout.decodes], dtype=np.int32)
            self._decoder.begin_step(self.block_tables, self.context_lens)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new keys and values in their slots; attend from each new token to all of its own.

        Args:
            q: [N, num_heads, head_dim]. k, v: [N, num_kv_heads, head_dim].

        Returns:
            [N, num_heads, head_dim].
        """
        layout = self.layout
        # All of them are stored before any is read: a request may read a block that another one fills in
        # this very step.
        self.storage.write(layer, layout.slot_mapping, k, v)
        if not layout.prefills:
            return self.decode(layer, q)
        out = torch.empty_like(q)
        if layout.decodes:
            out[layout.decode_rows] = self.decode(layer, q[layout.decode_rows])
        for i, start in layout.prefills:
            rows = slice(start, start + layout.query_lens[i])
            keys, values = k[rows], v[rows]
            if i in self._prompt_blocks:  # (for a prompt the copy is small beside the work)
                keys, values = self.storage.gather(layer, self._prompt_blocks[i], layout.context_lens[i])
            out[rows] = causal_attention(q[rows], keys, values)
        return out

    def decode(self, layer: int, q: Tensor) -> Tensor:
        """Attention of requests with one new token, `layout.decodes`. A subclass may do it another way.

        Args:
            q: [B, num_heads, head_dim]. Returns: the same.
        """
        return self._decoder.attend(layer, q)
