"""Decode attention of a paged cache on a CPU: with the compiled kernel if it is available, otherwise with a gather in torch."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from phase2_attention_kvcache.model.caches import AttentionRule, fused_attention
from phase3_paged_attention.paging.kv_storage import KVStorage

KERNEL = "phase3_paged_attention.compiled.cpu_kernel"


class Decoder(Protocol):
    """Computes attention for one new token of each request."""

    def begin_step(self, block_tables: np.ndarray, context_lens: np.ndarray) -> None:
        """block_tables: int32 [B, most blocks], 0 after a table's end. context_lens: int32 [B]."""

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """q: [B, num_heads, head_dim]. Returns: the same."""
        ...


def make_decoder(storage: KVStorage, rules: Sequence[AttentionRule], use_kernel: bool = True) -> Decoder:
    """The compiled kernel, if it is available and can read this storage. rules: one per layer."""
    readable = storage.device.type == "cpu" and storage.data.dtype in (torch.float32, torch.bfloat16)
    if use_kernel and readable and compiled_kernel() is not None:
        return _import_kernel().CompiledDecode(storage, rules)
    return GatherDecode(storage, rules)


_switched_off = False


def compiled_kernel() -> Callable | None:
    """`paged_decode_cpu`; None without numba, without a folder for compiled code, or after it was switched off."""
    module = None if _switched_off else _import_kernel()
    return module and module.paged_decode_cpu


def switch_off_compiled_kernel() -> None:
    """Caches created from now on gather. For a forked process, which numba's threads would terminate."""
    global _switched_off
    _switched_off = True


@cache
def _import_kernel() -> ModuleType | None:
    try:  # numba takes half a second to import: not before a cache is made
        return import_module(KERNEL)
    except (ImportError, RuntimeError):
        return None


class Reach(NamedTuple):
    """The blocks that the requests of a step read, for one window.

    Attributes:
        blocks: [B * columns], for each request the same number of blocks, side by side.
        mask: [B, 1, 1, places], True where a slot holds a token to which the query attends. padding: flat indices where it is False.
    """

    blocks: Tensor
    mask: Tensor
    padding: Tensor


class GatherDecode:
    """Without the compiled kernel: gather the blocks of each request, then compute attention with torch."""

    def __init__(self, storage: KVStorage, rules: Sequence[AttentionRule]) -> None:
        self._storage, self._rules = storage, rules
        self._rooms = [storage.data.new_empty(0) for _ in range(2)]  # for keys, for values

    def begin_step(self, block_tables: np.ndarray, context_lens: np.ndarray) -> None:
        windows = {rule.window for rule in self._rules}
        self._reach = {window: self._reach_of(window, block_tables, context_lens) for window in windows}

    def _reach_of(self, window: int | None, block_tables: np.ndarray, context_lens: np.ndarray) -> Reach:
        device, size = self._storage.device, self._storage.block_size
        first = np.zeros_like(context_lens) if window is None else np.maximum(context_lens - window, 0)
        first_block = first // size
        columns = np.arange((-(-context_lens // size) - first_block).max())
        # Columns behind a request's last block read the null block, or with a window the table's last column again: the mask hides both.
        chosen = np.minimum(first_block[:, None] + columns, block_tables.shape[1] - 1)
        blocks = np.take_along_axis(block_tables, chosen, axis=1)
        tokens = size * first_block[:, None] + np.arange(size * len(columns))
        seen = (tokens >= first[:, None]) & (tokens < context_lens[:, None])  # [B, places]
        mask = torch.from_numpy(seen).to(device)
        return Reach(
            torch.from_numpy(blocks).flatten().to(device),
            mask[:, None, None, :],
            (~mask).flatten().nonzero()[:, 0],
        )

    def attend(self, layer: int, q: Tensor) -> Tensor:
        batch, num_heads, head_dim = q.shape
        num_kv_heads = self._storage.num_kv_heads
        scale, window, softcap = self._rules[layer]
        reach = self._reach[window]
        keys, values = (self._gather(kind, layer, reach, batch) for kind in (0, 1))
        rows = q.view(batch, num_kv_heads, num_heads // num_kv_heads, head_dim)
        if softcap is None:
            out = fused_attention(rows, keys, values, attn_mask=reach.mask, scale=scale)
        else:  # torch's own function knows none
            scores = scale * rows.float() @ keys.float().mT
            scores = softcap * torch.tanh(scores / softcap)
            weights = scores.masked_fill(~reach.mask, -torch.inf).softmax(-1)
            out = (weights @ values.float()).to(q.dtype)
        return out.reshape(batch, num_heads, head_dim)

    def _gather(self, kind: int, layer: int, reach: Reach, batch: int) -> Tensor:
        """[B, num_kv_heads, places, head_dim]: every request's blocks in one row, 0 where the query attends to no token."""
        if self._storage.rounds:
            rows = self._storage.read(kind, layer, reach.blocks)
        else:
            # Into rows that are there from the layer before: fresh memory has to be cleared by the system first,
            # which takes several times as long as the copy itself.
            blocks, room = self._storage.data[kind, layer], self._rooms[kind]
            size = len(reach.blocks) * blocks[0].numel()
            if room.numel() < size:
                room.resize_(size)
            rows = room[:size].view(-1, *blocks.shape[1:])
            torch.index_select(blocks, 0, reach.blocks, out=rows)
        rows = rows.flatten(0, 1)  # [B * places, num_kv_heads, head_dim]
        # Memory that was never written may hold NaN, which no mask takes away: the mask is added to a score,
        # NaN + (-inf) is NaN; a masked value counts with weight 0, 0 x NaN is NaN. So wipe it.
        rows.index_fill_(0, reach.padding, 0)
        return rows.view(batch, -1, *rows.shape[1:]).transpose(1, 2)
