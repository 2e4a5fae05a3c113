"""Blocks that must be copied before the next step writes anything: the manager lists them, `SwapSpace` moves the bytes.

Attaches to: a block manager that lists copies (fork, swap), and the tensors of a `KVStorage`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.paging.kv_storage import KVStorage


class BlockCopy(NamedTuple):
    """Bytes to move before the next step computes. kind: "copy" (block to block), "out" (to main memory), "in" (back)."""

    kind: str
    source: int
    target: int


class CopyingBlockManager(BlockManager):
    """A block manager that asks for copies."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._copies: list[BlockCopy] = []

    def take_copies(self) -> list[BlockCopy]:
        """The copies that must be made, in this order, before the next step writes anything."""
        copies, self._copies = self._copies, []
        return copies


class SwapSpace:
    """Blocks in main memory beside a storage, and the copies between the two.

    Args:
        storage: the cache on the device.
        num_swap_blocks: 0: block to block only.
    """

    def __init__(self, storage: KVStorage, num_swap_blocks: int = 0) -> None:
        self._pairs = []
        for data in storage.tensors:
            # A block's numbers lie together there, and the memory is pinned: so the card copies a block in one piece, by
            # itself, while Python goes on.
            shape = (num_swap_blocks, *data.shape[:2], *data.shape[3:])
            swap = torch.empty(shape, dtype=data.dtype, pin_memory=data.device.type == "cuda")
            self._pairs.append((data, swap))

    def apply(self, copies: Sequence[BlockCopy]) -> None:
        """Make the copies, in the order given. On a GPU they are queued, before whatever is queued later."""
        for kind, source, target in copies:
            for data, swap in self._pairs:
                if kind == "copy":
                    data[:, :, target] = data[:, :, source]
                elif kind == "out":
                    swap[target].copy_(data[:, :, source], non_blocking=True)
                else:
                    data[:, :, target] = swap[source].to(data.device, non_blocking=True)
