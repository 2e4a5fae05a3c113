"""`KVStorage`: the tensors that hold keys and values in blocks, on the device and in the swap space."""

from collections.abc import Sequence

import torch
from torch import Tensor

from phase2_attention_kvcache.model.config import ModelConfig
from phase2_attention_kvcache.model.kv_formats import SCALE, check_kv_cache_dtype, narrow, stored_dtype, widen
from phase2_attention_kvcache.model.large_pages import empty_in_large_pages
from phase3_paged_attention.paging.block_table import BlockCopy


class KVStorage:
    """Memory for keys and values of all layers. It stores and copies; a paged cache attends over it.

    Args:
        config: shape of the model.
        num_blocks, block_size: size of the cache. Block 0 is the null block.
        dtype, device: of the keys and values, as the model computes them.
        num_swap_blocks: blocks of main memory for requests that had to make room.
        kv_cache_dtype: how they are stored, a name in KV_CACHE_DTYPES.
        memory: uint8, where the keys and values are to lie (in memory that processes share, say); None: in new memory.

    Attributes:
        k_cache, v_cache: for each layer [num_blocks, block_size, num_kv_heads, head_dim].
        data: all of it, [2 (keys, values), num_layers, num_blocks, block_size, num_kv_heads, head_dim].
        swap: the same in main memory, with num_swap_blocks blocks.
        scales, swap_scales: for "int8_per_token_head" the same without head_dim, otherwise None.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        num_swap_blocks: int = 0,
        kv_cache_dtype: str = "auto",
        memory: Tensor | None = None,
    ) -> None:
        check_kv_cache_dtype(kv_cache_dtype)
        self.dtype, self.kv_cache_dtype = dtype, kv_cache_dtype
        self.num_blocks, self.block_size = num_blocks, block_size
        self.num_kv_heads, self.head_dim = config.num_kv_heads, config.head_dim
        # One tensor for everything, so that copying a block copies it in all layers at once.
        shape = (2, config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        stored = stored_dtype(kv_cache_dtype, dtype)
        if memory is not None:
            self.data = memory.view(stored).view(shape)
        elif torch.device(device).type == "cpu":
            self.data = empty_in_large_pages(shape, stored)
        else:
            self.data = torch.empty(shape, dtype=stored, device=device)
        self.swap = torch.empty((*shape[:2], num_swap_blocks, *shape[3:]), dtype=stored)
        self.scales = self.swap_scales = None
        if kv_cache_dtype == "int8_per_token_head":
            self.scales = torch.empty(shape[:-1], dtype=SCALE, device=device)
            self.swap_scales = torch.empty((*shape[:2], num_swap_blocks, *shape[3:-1]), dtype=SCALE)
        self.k_cache, self.v_cache = self.data[0].unbind(0), self.data[1].unbind(0)
        # The same memory, one row a slot: [num_blocks * block_size, num_kv_heads, head_dim].
        self._k_slots = [as_bytes(blocks.flatten(0, 1)) for blocks in self.k_cache]
        self._v_slots = [as_bytes(blocks.flatten(0, 1)) for blocks in self.v_cache]

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def is_narrow(self) -> bool:
        """Whether what is read differs from what was written."""
        return self.kv_cache_dtype != "auto"

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def write(self, layer: int, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
        """Store the keys and values of N tokens in their slots. k, v: [N, num_kv_heads, head_dim]."""
        for kind, slots, x in ((0, self._k_slots, k), (1, self._v_slots, v)):
            codes, scales = narrow(x, self.kv_cache_dtype)
            slots[layer].index_copy_(0, slot_mapping, as_bytes(codes))
            if scales is not None:
                self.scales[kind, layer].flatten(0, 1).index_copy_(0, slot_mapping, scales)

    def gather(self, layer: int, block_ids: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """A copy of one request's keys and values in one row, each [num_tokens, num_kv_heads, head_dim]."""
        keys, values = (self.read(kind, layer, block_ids).flatten(0, 1)[:num_tokens] for kind in (0, 1))
        return keys, values

    def read(self, kind: int, layer: int, block_ids: Tensor) -> Tensor:
        """A copy of some blocks, as the model computes: [len(block_ids), block_size, num_kv_heads, head_dim].

        Args:
            kind: 0 for keys, 1 for values.
        """
        codes = as_bytes(self.data[kind, layer]).index_select(0, block_ids).view(self.data.dtype)
        scales = None if self.scales is None else self.scales[kind, layer].index_select(0, block_ids)
        return widen(codes, scales, self.dtype)

    def apply_copies(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks, and move them to and from main memory, in the order given."""
        stores = (
            [(self.data, self.swap)]
            if self.scales is None
            else [(self.data, self.swap), (self.scales, self.swap_scales)]
        )
        for kind, source, target in copies:
            for data, swap in stores:
                if kind == "copy":
                    data[:, :, target] = data[:, :, source]
                elif kind == "out":
                    swap[:, :, target] = data[:, :, source].to("cpu")
                else:
                    data[:, :, target] = swap[:, :, source].to(self.device)


def as_bytes(x: Tensor) -> Tensor:
    """The same memory. Not every operation that moves numbers knows 8-bit floats; all know bytes."""
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x
