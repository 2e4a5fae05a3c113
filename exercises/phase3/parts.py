"""Parts of the engine that call a learner's part in one place, and are the course's own elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from exercises.judging.engine_runs import TokenByToken
from phase3_paged_attention.paging import (
    BlockAllocator,
    BlockManager,
    BlockTable,
    PagedKVCache,
    PhysicalBlock,
    StepLayout,
)
from phase3_paged_attention.sharing import ForkingBlockManager


class AllocatorManager(ForkingBlockManager):
    """The course's manager, without prefix caching: blocks come from the learner's allocator."""

    def __init__(self, allocator: Any, num_blocks: int) -> None:
        super().__init__(num_blocks, enable_prefix_caching=False)
        self.learners = allocator

    def take_block(self) -> PhysicalBlock:
        block = self.allocator.blocks[self.learners.take()]
        self.allocator.remove(block)
        block.ref_count = 1
        return block

    def give_back(self, blocks: Iterable[PhysicalBlock]) -> None:
        blocks = list(blocks)
        self.learners.give_back([block.block_id for block in blocks])
        super().give_back(blocks)

    def fork(self, table: BlockTable) -> BlockTable:
        for block in table.block_ids:
            self.learners.share(block)
        return super().fork(table)

    def copy_on_write(self, table: BlockTable, index: int) -> None:
        old = table.block_ids[index]
        super().copy_on_write(table, index)
        self.learners.give_back([old])


class SlotsCache(PagedKVCache):
    """Keys and values go where the learner's function says."""

    part: Callable

    def begin_step(self, layout: StepLayout) -> None:
        slots: list[int] = []
        for n, context, table in zip(
            layout.query_lens, layout.context_lens, layout.block_tables, strict=True
        ):
            slots += [int(slot) for slot in self.part(list(table), context - n, n, self.block_size)]
        layout.slot_mapping = torch.tensor(slots, device=self.storage.device)
        super().begin_step(layout)


class PrefixManager(BlockManager):
    """Block hashes are worked out and found by the learner's functions."""

    def __init__(self, num_blocks: int, block_names: Callable, find_prefix: Callable) -> None:
        super().__init__(num_blocks)
        self.block_names, self.find_prefix = block_names, find_prefix

    def match_prefix(self, table: BlockTable, token_ids: Sequence[int]) -> list[PhysicalBlock]:
        cached: dict[Any, int] = {}
        for block_hash, block in self.prefix_cache:
            cached.setdefault(block_hash, block.block_id)  # of equal blocks the oldest
        found = self.find_prefix(list(token_ids), self.block_size, cached)
        return [self.allocator.blocks[block] for block in found]

    def block_hashes(self, table: BlockTable, token_ids: Sequence[int], num_blocks: int) -> list[Any]:
        return list(self.block_names(list(token_ids[: num_blocks * self.block_size]), self.block_size))


class OrderedAllocator(BlockAllocator):
    """The learner's list says which free block is taken next."""

    def __init__(self, num_blocks: int, FreeList: type) -> None:
        super().__init__(num_blocks)
        self.order = FreeList(list(range(1, num_blocks)))

    def take(self) -> PhysicalBlock:
        block = self.blocks[self.order.take()]
        super().remove(block)
        block.ref_count = 1
        return block

    def remove(self, block: PhysicalBlock) -> None:
        self.order.hit(block.block_id)
        super().remove(block)


class OrderManager(BlockManager):
    """The course's manager over such an allocator."""

    def __init__(self, num_blocks: int, FreeList: type) -> None:
        super().__init__(num_blocks)
        self.allocator = OrderedAllocator(num_blocks, FreeList)

    def give_back(self, blocks: Iterable[PhysicalBlock]) -> None:
        blocks = list(blocks)  # from the last block of a table to its first
        freed = [block for block in reversed(blocks) if block.ref_count == 1]
        num_full = sum(block.block_hash is not None for block in freed)
        self.allocator.order.give_back([block.block_id for block in freed], num_full)
        super().give_back(blocks)


class _Counts:
    """The manager's reference counts, as a list."""

    def __init__(self, manager: BlockManager) -> None:
        self._blocks = manager.allocator.blocks

    def __getitem__(self, block: int) -> int:
        return self._blocks[block].ref_count

    def __setitem__(self, block: int, count: int) -> None:
        self._blocks[block].ref_count = count


class ManagerPool:
    """What exercise 3.5 calls a pool, on a block manager of the course."""

    def __init__(self, manager: CopyManager) -> None:
        self._manager = manager
        self.block_size, self.ref_count = manager.block_size, _Counts(manager)

    def take(self) -> int:
        return self._manager.take_block().block_id

    def copy(self, source: int, target: int) -> None:
        self._manager.copy_block(source, target)


class CopyManager(ForkingBlockManager):
    """Tables grow and fork, and shared blocks are copied, the learner's way."""

    def __init__(self, num_blocks: int, fork: Callable, make_room: Callable) -> None:
        super().__init__(num_blocks)
        self._fork, self._make_room, self._pool = fork, make_room, ManagerPool(self)

    def fork(self, table: BlockTable) -> BlockTable:
        twin = BlockTable(
            block_ids=list(self._fork(table.block_ids, self._pool)), num_tokens=table.num_tokens
        )
        return self._held(twin)

    def reserve(
        self, table: BlockTable, num_tokens: int, prefix: Sequence[PhysicalBlock] = (), must_fit: int = 0
    ) -> bool:
        for written in range(table.num_tokens, num_tokens):
            self._make_room(table.block_ids, written, self._pool)
        table.num_tokens = num_tokens
        self._held(table)
        return True

    def _held(self, table: BlockTable) -> BlockTable:
        """The table with the blocks that its ids name, known to the manager."""
        table.blocks = [self.allocator.blocks[i] for i in table.block_ids]
        self.tables.add(table)
        return table


class AttentionCache(TokenByToken):
    """Single new tokens attend with the learner's function, one head at a time."""

    def attend_token(self, layer: int, q: Tensor, table: list[int], length: int) -> Tensor:
        storage, heads = self.storage, []
        group = q.shape[0] // storage.num_kv_heads
        for head in range(q.shape[0]):
            k_cache, v_cache = (c[layer][:, :, head // group] for c in (storage.k_cache, storage.v_cache))
            found = self.part(q[head], k_cache, v_cache, table, length)
            heads.append(torch.as_tensor(found, dtype=q.dtype))
        return torch.stack(heads)
