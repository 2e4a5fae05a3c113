"""The layers of a model, with compiled functions (`kernels.py`) between the matrix multiplications.

No half of a layer adds its result to the residual stream: the function that computes the next norm does it on the way. (In vLLM
this is the kernel `fused_add_rms_norm`.)
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from phase2_attention_kvcache.model.config import Rotation
from phase2_attention_kvcache.model.layers import Angles, Block, Blocks, KVCache
from phase3_paged_attention.compiled.arrays import stored_bits
from phase3_paged_attention.paging import KVStorage, PagedKVCache
from phase3_paged_attention.paging.cpu_decode import GatherDecode


class Step(NamedTuple):
    """What the layers of a step share. places: see `places_of`. normed, attended: room for results, [N, d_model] and [N, q_size]."""

    kv: KVCache
    places: tuple[np.ndarray, np.ndarray] | None
    normed: Tensor
    attended: Tensor
    normed_bits: np.ndarray
    attended_bits: np.ndarray


def places_of(kv: KVCache, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray] | None:
    """The slots of all rows, and the rows that are decoded, for compiled functions that store and attend; None: only the cache can."""
    plain = type(kv) is PagedKVCache and type(kv.storage) is KVStorage and kv.storage.dtype == dtype
    if not plain or isinstance(kv.decoder, GatherDecode):
        return None
    slots, rows = kv.layout.slot_mapping.numpy(), kv.layout.decode_rows
    return slots, np.arange(len(slots))[rows] if isinstance(rows, slice) else rows.numpy()


class CPUBlock(Block):
    """A layer.

    Attributes:
        num_heads: of queries, and of keys. splits: of queries, keys, values.
        stream_norms: before attention, and before the MLP. head_norms: of queries and keys.
        most_few_rows: up to so many rows our kernel does all matrix multiplications of a decode, with `matrices`.
    """

    def forward(
        self, stream: np.ndarray, found: np.ndarray, layer: int, angles: tuple[np.ndarray, ...], step: Step
    ) -> np.ndarray:
        """stream (changed), found and the result, each [N, d_model]: the residual stream, and what is still to be added to it."""
        from phase4_scheduler.cpu import kernels  # numba takes half a second to import

        n, attention, kv, (before, after) = len(stream), self.attention, step.kv, self.stream_norms
        preparation = (*self.num_heads, self.head_norms, *angles)
        cached = step.places and (*step.places, *kv.decoder.cached(layer))
        if cached and n <= self.most_few_rows and not kv.layout.prefills:
            return kernels.whole_layer(stream, found, before, after, self.matrices, *preparation, cached)
        kernels.add_and_norm(stream, found, before, step.normed_bits)
        qkv, attended = attention.qkv(step.normed).view(n, -1, attention.head_dim), step.attended
        if cached:
            kernels.attend(stored_bits(qkv), *preparation, cached, step.attended_bits)
            if kv.layout.prefills:
                out = attended.view(n, -1, attention.head_dim)
                kv.prompts.attend(layer, *qkv.split(self.splits, dim=1), out)
        else:
            kernels.norm_and_rotate(stored_bits(qkv), *preparation)
            attended = kv.attend(layer, *qkv.split(self.splits, dim=1)).reshape(n, -1)
        kernels.add_and_norm(stream, stored_bits(attention.out(attended)), after, step.normed_bits)
        return stored_bits(self.mlp(step.normed))


class CPUBlocks(Blocks):
    """All layers."""

    def forward(self, x: Tensor, angles: dict[Rotation | None, Angles | None], kv: KVCache) -> Tensor:
        """See `Blocks`."""
        x = x.clone()
        stream, rooms = stored_bits(x), (torch.empty_like(x), x.new_empty(len(x), self[0].attention.q_size))
        step = Step(kv, places_of(kv, x.dtype), *rooms, *map(stored_bits, rooms))
        none, found = np.empty((len(x), 0), stream.dtype), stream[:0]
        tables = {
            kind: tuple(map(stored_bits, pair)) if pair else (none, none) for kind, pair in angles.items()
        }
        for layer, block in enumerate(self):
            found = block(stream, found, layer, tables[block.rotation], step)
        return x + torch.from_numpy(found).view(x.dtype)
