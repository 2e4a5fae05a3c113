"""`KVStorage`: the tensors that hold keys and values in blocks, on the device and in the swap space."""

from collections.abc import Sequence

import torch
from torch import Tensor

from phase2_attention_kvcache.model.config import ModelConfig
from phase3_paged_attention.paging.block_table import BlockCopy


class KVStorage:
    """Memory for keys and values of all layers. It stores and copies; a paged cache attends over it.

    Args:
        config: shape of the model.
        num_blocks, block_size: size of the cache. Block 0 is the null block.
        dtype, device: of the keys and values.
        num_swap_blocks: blocks of main memory for requests that had to make room.

    Attributes:
        k_cache, v_cache: for each layer [num_blocks, block_size, num_kv_heads, head_dim].
        data: all of it, [2 (keys, values), num_layers, num_blocks, block_size, num_kv_heads, head_dim].
        swap: the same in main memory, with num_swap_blocks blocks.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        num_swap_blocks: int = 0,
    ) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.num_kv_heads, self.head_dim = config.num_kv_heads, config.head_dim
        # One tensor for everything, so that copying a block copies it in all layers at once.
        shape = (2, config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.data = torch.empty(shape, dtype=dtype, device=device)
        self.swap = torch.empty((*shape[:2], num_swap_blocks, *shape[3:]), dtype=dtype)
        self.k_cache, self.v_cache = self.data[0].unbind(0), self.data[1].unbind(0)
        # The same memory, one row a slot: [num_blocks * block_size, num_kv_heads, head_dim].
        self._k_slots = [blocks.flatten(0, 1) for blocks in self.k_cache]
        self._v_slots = [blocks.flatten(0, 1) for blocks in self.v_cache]

    @property
    def device(self) -> torch.device:
        return self.data.device

    def write(self, layer: int, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
        """Store the keys and values of N tokens in their slots. k, v: [N, num_kv_heads, head_dim]."""
        self._k_slots[layer].index_copy_(0, slot_mapping, k)
        self._v_slots[layer].index_copy_(0, slot_mapping, v)

    def gather(self, layer: int, block_ids: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """A copy of one request's keys and values in one row, each [num_tokens, num_kv_heads, head_dim]."""
        keys = self.k_cache[layer].index_select(0, block_ids).flatten(0, 1)[:num_tokens]
        values = self.v_cache[layer].index_select(0, block_ids).flatten(0, 1)[:num_tokens]
        return keys, values

    def apply_copies(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks, and move them to and from main memory, in the order given."""
        for kind, source, target in copies:
            if kind == "copy":
                self.data[:, :, target] = self.data[:, :, source]
            elif kind == "out":
                self.swap[:, :, target] = self.data[:, :, source].to("cpu")
            else:
                self.data[:, :, target] = self.swap[:, :, source].to(self.device)
