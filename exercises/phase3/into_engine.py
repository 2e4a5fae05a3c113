"""The way into the engine for phase 3: a block manager or a cache that calls the learner's part in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from exercises.capstone.your_engine import BEGINNING
from exercises.judging.engine_runs import PROMPTS, TokenByToken, compare, run
from exercises.judging.side_by_side import passed
from exercises.phase3.forked_answers import forked_answers
from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.paging import BlockAllocator, BlockManager, BlockTable, PhysicalBlock
from phase3_paged_attention.sharing import ForkingBlockManager

THREE_ANSWERS = SamplingParams(temperature=1.0, seed=5, n=3, max_tokens=24, ignore_eos=True)
SHARED = tuple(BEGINNING + end for end in (" The king", " Your sons", " Who of you", " I bring"))


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


# ---------------------------------------------------------------------- one by one


def order_in_the_engine(FreeList: type) -> None:
    """Exercise 3.4: the same prompts come again and again, and memory is too small to keep everything."""
    passed("p3e4_eviction", FreeList)
    waves = (SHARED[:2], PROMPTS, SHARED[2:], PROMPTS[:2], SHARED)
    managers = OrderManager(24, FreeList), BlockManager(24)
    mine, course = (run(waves, manager=manager) for manager in managers)
    agree = sum(x == y for x, y in zip(mine.taken, course.taken))
    evicted, hits = ([getattr(m.stats, what) for m in managers] for what in ("evicted_blocks", "hit_tokens"))
    compare(
        mine,
        course,
        ("blocks taken in the course's order", agree, len(course.taken)),
        ("cached blocks that had to go", *evicted),
        ("prompt tokens found in the cache", *hits),
    )


def copy_on_write_in_the_engine(fork: Callable, make_room: Callable) -> None:
    """Exercise 3.5: three answers that share the blocks of one prompt."""
    passed("p3e5_copy_on_write", fork, make_room)
    managers = CopyManager(100, fork, make_room), ForkingBlockManager(100)
    (mine, copied), (course, copied_by_course) = (
        forked_answers(manager, PROMPTS[0], THREE_ANSWERS) for manager in managers
    )
    compare(mine, course, ("blocks copied", copied, copied_by_course))


def attention_in_the_engine(paged_attention: Callable) -> None:
    """Exercise 3.6: the learner's loop, beside the course's attention."""
    passed("p3e6_paged_attention", paged_attention)
    compare(run(kind=AttentionCache, part=paged_attention), run())
