"""`StepLayout`, the slots of a step's tokens; `PagedCache`, the interface; `PagedKVCache`, the paged cache in torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from phase2_attention_kvcache.model.caches import attention_rules
from phase2_attention_kvcache.model.config import ModelConfig
from phase3_paged_attention.paging.cpu_decode import make_decoder
from phase3_paged_attention.paging.kv_storage import KVStorage
from phase3_paged_attention.paging.prompt_attention import PromptAttention

FEW_ROWS = 8  # new tokens of a request that are decoded one by one rather than like a prompt


@dataclass
class StepLayout:
    """The request of each token of a step, and the slot of its keys and values.

    Attributes:
        query_lens: tokens of each request in this step.
        context_lens: tokens of each request after this step.
        block_tables: physical blocks of each request.
        slot_mapping: for each of the N tokens, block_id * block_size + offset.
    """

    query_lens: list[int]
    context_lens: list[int]
    block_tables: list[list[int]]
    slot_mapping: Tensor

    # Computed once per step, for all layers.
    decodes: list[int] = field(init=False)  # for each row that is decoded: its request
    decode_lens: list[int] = field(init=False)  # and the tokens that it may see
    prefills: list[tuple[int, int]] = field(init=False)  # (request, its first row)
    decode_rows: Tensor | slice = field(init=False)

    def __post_init__(self) -> None:
        self.decodes, self.decode_lens, self.prefills, rows, start = [], [], [], [], 0
        for i, (query_len, context_len) in enumerate(zip(self.query_lens, self.context_lens, strict=True)):
            if query_len == 1:
                self.decodes.append(i)
                self.decode_lens.append(context_len)
                rows.append(start)
            elif query_len <= FEW_ROWS and query_len < context_len:
                # A few tokens behind a long past: each is decoded as if it came alone. Keys and values
                # of all are stored before any attends, and each sees those up to its own.
                self.decodes += [i] * query_len
                self.decode_lens += range(context_len - query_len + 1, context_len + 1)
                rows += range(start, start + query_len)
            elif query_len:
                self.prefills.append((i, start))
            start += query_len
        first, last = (rows[0], rows[-1]) if rows else (0, -1)
        if last - first + 1 == len(rows):
            self.decode_rows = slice(first, last + 1)  # side by side: no need to gather them
        else:
            self.decode_rows = torch.tensor(rows, dtype=torch.long, device=self.slot_mapping.device)


def pad_tables(block_tables: Sequence[Sequence[int]]) -> np.ndarray:
    """Block tables as one array [B, most blocks] int32, padded with 0, the null block."""
    padded = np.zeros((len(block_tables), max(map(len, block_tables))), dtype=np.int32)
    for row, table in zip(padded, block_tables, strict=True):
        row[: len(table)] = table
    return padded


class PagedCache(Protocol):
    """Keys and values of many requests in blocks: the object behind `kv.attend` in the engine.

    The engine calls `begin_step` before each step. In the step every layer calls `attend` once.
    """

    num_blocks: int
    block_size: int

    def begin_step(self, layout: StepLayout) -> None:
        """Set the layout of the next step."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new keys and values in their slots; return the attention of each new token over its request's tokens.

        Args:
            q: [N, num_heads, head_dim]. k, v: [N, num_kv_heads, head_dim].

        Returns:
            [N, num_heads, head_dim].
        """
        ...


class PagedKVCache:
    """A paged cache (see `PagedCache`) in torch, with a compiled kernel for decode steps on a CPU.

    Args:
        config, num_blocks, block_size, dtype, device: as for `KVStorage`.
        storage: the tensors; None: new ones.
        use_kernel: False: gather blocks for decode, even where the compiled kernel could run.

    Attributes:
        storage: the tensors.
        rules: scale, window and soft cap of each layer's attention.
        decoder, prompts: compute the attention of rows in decode, and of the others.
        layout: the layout of the step begun last.
        block_tables, context_lens: those of the last step with `decodes`, int32: [B, most blocks] with 0 after a
            table's end, and [B].
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        use_kernel: bool = True,
        storage: KVStorage | None = None,
    ) -> None:
        self.storage = storage or KVStorage(config, num_blocks, block_size, dtype, device)
        self.num_blocks, self.block_size = num_blocks, block_size
        self.rules = attention_rules(config)
        self.decoder = make_decoder(self.storage, self.rules, use_kernel)
        self.prompts = PromptAttention(self.storage, self.rules)
        self.layout: StepLayout | None = None

    def begin_step(self, layout: StepLayout) -> None:
        """Set the layout of the next step."""
        self.layout = layout
        if layout.prefills:
            of_requests = list(zip(layout.query_lens, layout.context_lens, layout.block_tables, strict=True))
            self.prompts.begin_step((first, *of_requests[i]) for i, first in layout.prefills)
        if layout.decodes:
            self.block_tables = pad_tables([layout.block_tables[i] for i in layout.decodes])
            self.context_lens = np.array(layout.decode_lens, dtype=np.int32)
            self.decoder.begin_step(self.block_tables, self.context_lens)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `PagedCache`."""
        layout = self.layout
        # All of them are stored before any is read: a request may read a block that another one fills in
        # this very step.
        self.storage.write(layer, layout.slot_mapping, k, v)
        if not layout.prefills:
            return self.decoder.attend(layer, q)
        out = torch.empty_like(q)
        if layout.decodes:
            out[layout.decode_rows] = self.decoder.attend(layer, q[layout.decode_rows])
        self.prompts.attend(layer, q, k, v, out)
        return out
