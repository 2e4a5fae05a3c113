"""`KVStorage`: the tensors that hold keys and values in blocks."""

import torch
from torch import Tensor

from phase2_attention_kvcache.model.config import ModelConfig


class KVStorage:
    """Memory for keys and values of all layers. It writes and reads; a paged cache computes the attention.

    Args:
        config: shape of the model.
        num_blocks, block_size: size of the cache. Block 0 is the null block.
        dtype, device: of the keys and values.

    Attributes:
        data: all keys and values, [2 (keys, values), num_layers, num_blocks, block_size, num_kv_heads, head_dim].
        k_cache, v_cache: for each layer [num_blocks, block_size, num_kv_heads, head_dim].
        rounds: True if a read returns rounded numbers.
        tensors: all tensors whose dimension 2 is the block.
    """

    rounds = False

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> None:
        self.dtype = dtype
        self.num_blocks, self.block_size = num_blocks, block_size
        self.num_kv_heads, self.head_dim = config.num_kv_heads, config.head_dim
        # One tensor for everything, so that copying a block copies it in all layers at once.
        shape = (2, config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.data = torch.empty(shape, dtype=self.stored_dtype, device=device)
        self.k_cache, self.v_cache = self.data[0].unbind(0), self.data[1].unbind(0)
        # The same memory, one row a slot: [num_blocks * block_size, num_kv_heads, head_dim].
        self._slots = [[blocks.flatten(0, 1) for blocks in self.data[kind].unbind(0)] for kind in (0, 1)]

    @property
    def stored_dtype(self) -> torch.dtype:
        return self.dtype

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def tensors(self) -> list[Tensor]:
        return [self.data]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def write(self, layer: int, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
        """Store the keys and values of N tokens in their slots. k, v: [N, num_kv_heads, head_dim]."""
        for kind, x in ((0, k), (1, v)):
            self._slots[kind][layer].index_copy_(0, slot_mapping, x)

    def gather(self, layer: int, block_ids: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """A copy of keys and values in one row, each [num_tokens, num_kv_heads, head_dim]; or [P, num_tokens, ...] for
        the `block_ids` [P, blocks] of P requests."""
        blocks = (
            self.read(kind, layer, block_ids.flatten()).unflatten(0, block_ids.shape) for kind in (0, 1)
        )
        keys, values = (each.flatten(-4, -3)[..., :num_tokens, :, :] for each in blocks)
        return keys, values

    def read(self, kind: int, layer: int, block_ids: Tensor) -> Tensor:
        """A copy of some blocks, as the model computes: [len(block_ids), block_size, num_kv_heads, head_dim].

        Args:
            kind: 0 for keys, 1 for values.
        """
        return self.data[kind, layer].index_select(0, block_ids)
