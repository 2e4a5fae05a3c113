"""What a step tells a paged cache, and what the engine asks of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from phase3_paged_attention.paging.block_table import BlockCopy
from phase3_paged_attention.paging.kv_storage import KVStorage


@dataclass
class StepLayout:
    """Which request the tokens of a step belong to, and where their keys and values lie.

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

    # Worked out once a step; all layers use it.
    decodes: list[int] = field(init=False)  # requests with a single new token
    prefills: list[tuple[int, int]] = field(init=False)  # (request, its first row)
    decode_rows: Tensor | slice = field(init=False)

    def __post_init__(self) -> None:
        self.decodes, self.prefills, rows, start = [], [], [], 0
        for i, query_len in enumerate(self.query_lens):
            if query_len == 1:
                self.decodes.append(i)
                rows.append(start)
            elif query_len > 1:
                self.prefills.append((i, start))
            start += query_len
        first, last = (rows[0], rows[-1]) if rows else (0, -1)
        if last - first + 1 == len(rows):
            self.decode_rows = slice(first, last + 1)  # side by side: no need to gather them
        else:
            self.decode_rows = torch.tensor(rows, dtype=torch.long, device=self.slot_mapping.device)


def pad_tables(block_tables: Sequence[Sequence[int]]) -> np.ndarray:
    """Block tables as one array [B, most blocks] int32, filled up with 0, the null block."""
    padded = np.zeros((len(block_tables), max(map(len, block_tables))), dtype=np.int32)
    for row, table in zip(padded, block_tables, strict=True):
        row[: len(table)] = table
    return padded


class PagedCache(Protocol):
    """Keys and values of many requests in blocks: what stands behind `kv.attend` in the engine.

    Before each step: first `apply_copies` with the copies that the block manager asks for, then
    `begin_step`. In the step every layer calls `attend` once.
    """

    storage: KVStorage
    num_blocks: int
    block_size: int

    def apply_copies(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks, and move them to and from main memory, in the order given."""

    def begin_step(self, layout: StepLayout) -> None:
        """Say where the tokens of the next step lie."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new keys and values in their slots; attend from each new token to all of its own.

        Args:
            q: [N, num_heads, head_dim]. k, v: [N, num_kv_heads, head_dim].

        Returns:
            [N, num_heads, head_dim].
        """
        ...
