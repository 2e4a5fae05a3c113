"""How a paged cache decodes on a CPU: with the compiled kernel where there is one, otherwise gathered with torch."""

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from phase3_paged_attention.paging.kv_storage import KVStorage


class Decoder(Protocol):
    """Attends from one new token of each request."""

    def begin_step(self, block_tables: np.ndarray, context_lens: np.ndarray) -> None:
        """block_tables: int32 [B, most blocks], 0 behind a table's end. context_lens: int32 [B]."""

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """q: [B, num_heads, head_dim]. Returns: the same."""
        ...


def make_decoder(storage: KVStorage, use_kernel: bool = True) -> Decoder:
    """The compiled kernel, if it is there and reads this storage."""
    readable = storage.device.type == "cpu" and storage.data.dtype in (torch.float32, torch.bfloat16)
    if use_kernel and readable and compiled_kernel() is not None:
        return _import_kernel().CompiledDecode(storage)
    return GatherDecode(storage)


_switched_off = False


def compiled_kernel() -> Callable | None:
    """`paged_decode_cpu`; None without numba, with no folder for what it compiles, or once switched off."""
    module = None if _switched_off else _import_kernel()
    return module and module.paged_decode_cpu


def switch_off_compiled_kernel() -> None:
    """Caches made from now on gather. For a forked process, which numba's threads would end."""
    global _switched_off
    _switched_off = True


@cache
def _import_kernel() -> ModuleType | None:
    try:  # numba takes half a second to import: not before a cache is made
        from phase3_paged_attention.paging import cpu_kernel
    except (ImportError, RuntimeError):
        return None
    return cpu_kernel


class GatherDecode:
    """Where there is no compiled kernel: copy the blocks of each request together, then attend with torch."""

    def __init__(self, storage: KVStorage) -> None:
        self._storage = storage
        self._rooms = [storage.data.new_empty(0) for _ in range(2)]  # for keys, for values

    def begin_step(self, block_tables: np.ndarray, context_lens: np.ndarray) -> None:
        device, size = self._storage.device, self._storage.block_size
        self._batch = len(block_tables)
        self._blocks = torch.from_numpy(block_tables).flatten().to(device)
        places = torch.arange(block_tables.shape[1] * size, device=device)
        holds_token = places < torch.from_numpy(context_lens).to(device)[:, None]  # [B, places]
        self._mask = holds_token[:, None, None, :]
        self._padding = (~holds_token).flatten().nonzero()[:, 0]

    def attend(self, layer: int, q: Tensor) -> Tensor:
        batch, num_heads, head_dim = q.shape
        num_kv_heads = self._storage.num_kv_heads
        keys, values = self._gather(0, layer), self._gather(1, layer)
        rows = q.view(batch, num_kv_heads, num_heads // num_kv_heads, head_dim)
        out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=self._mask)
        return out.reshape(batch, num_heads, head_dim)

    def _gather(self, kind: int, layer: int) -> Tensor:
        """[B, num_kv_heads, places, head_dim]: every request's blocks in one row, 0 where there is no token."""
        if self._storage.is_narrow:
            rows = self._storage.read(kind, layer, self._blocks)
        else:
            # Into rows that are there from the layer before: fresh memory has to be cleared by the system first,
            # which takes several times as long as the copy itself.
            blocks, room = self._storage.data[kind, layer], self._rooms[kind]
            size = len(self._blocks) * blocks[0].numel()
            if room.numel() < size:
                room.resize_(size)
            rows = room[:size].view(-1, *blocks.shape[1:])
            torch.index_select(blocks, 0, self._blocks, out=rows)
        rows = rows.flatten(0, 1)  # [B * places, num_kv_heads, head_dim]
        # Memory that was never written may hold NaN, which no mask takes away: the mask is added to a score,
        # NaN + (-inf) is NaN; a masked value counts with weight 0, 0 x NaN is NaN. So wipe it.
        rows.index_fill_(0, self._padding, 0)
        return rows.view(self._batch, -1, *rows.shape[1:]).transpose(1, 2)
