"""Two ways to attend from one new token of each request, on a CPU: compiled and in place, or gathered with torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from phase3_paged_attention.paging.kv_storage import KVStorage

# ---------------------------------------------------------------------- is the compiled kernel there?

_switched_off = False


def compiled_kernel() -> Callable | None:
    """`paged_decode_cpu`; None without numba, with no folder for what it compiles, or once switched off."""
    return None if _switched_off else _import_kernel()


def switch_off_compiled_kernel() -> None:
    """Caches made from now on gather. For a forked process, which numba's threads would end."""
    global _switched_off
    _switched_off = True


@cache
def _import_kernel() -> Callable | None:
    try:  # numba takes half a second to import: not before a cache is made
        from phase3_paged_attention.paging.cpu_kernel import paged_decode_cpu
    except (ImportError, RuntimeError):
        return None
    return paged_decode_cpu


# ---------------------------------------------------------------------- the two ways


class CompiledDecode:
    """The compiled kernel reads blocks where they lie."""

    def __init__(self, storage: KVStorage, kernel: Callable) -> None:
        import numba

        self._kernel, self._scale = kernel, np.float32(storage.head_dim**-0.5)
        # As many threads as torch, and never more. (Starting numba's threads sets torch's number, too,
        # since both have the same ones. Put it back.)
        threads = torch.get_num_threads()
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        torch.set_num_threads(threads)
        # The kernel reads the memory of the tensors as numpy arrays (bfloat16 as its 16 bits).
        data = storage.data
        bits = data.view(torch.uint16) if data.dtype == torch.bfloat16 else data
        self._k_cache, self._v_cache = list(bits[0].numpy()), list(bits[1].numpy())

    @staticmethod
    def can_read(storage: KVStorage) -> bool:
        return storage.device.type == "cpu" and storage.data.dtype in (torch.float32, torch.bfloat16)

    def begin_step(self, block_tables: np.ndarray, context_lens: np.ndarray) -> None:
        self._block_tables, self._context_lens = block_tables, context_lens

    def attend(self, layer: int, q: Tensor) -> Tensor:
        out = torch.empty(q.shape, dtype=torch.float32)
        # A few items of work for each core, and no more: merging parts costs something as well.
        num_splits = max(1, -(-2 * torch.get_num_threads() // len(q)))
        self._kernel(
            q.float().contiguous().numpy(),
            self._k_cache[layer],
            self._v_cache[layer],
            self._block_tables,
            self._context_lens,
            self._scale,
            num_splits,
            out.numpy(),
        )
        return out.to(q.dtype)


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
        keys = self._gather(self._storage.k_cache[layer], self._rooms[0])
        values = self._gather(self._storage.v_cache[layer], self._rooms[1])
        rows = q.view(batch, num_kv_heads, num_heads // num_kv_heads, head_dim)
        out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=self._mask)
        return out.reshape(batch, num_heads, head_dim)

    def _gather(self, blocks: Tensor, room: Tensor) -> Tensor:
        """[B, num_kv_heads, places, head_dim]: every request's blocks in one row, 0 where there is no token."""
        # Into rows that are there from the layer before: fresh memory has to be cleared by the system first,
        # which takes several times as long as the copy itself.
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
