"""The way into the engine for phase 3: a block manager or a cache that calls the learner's part in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from exercises.capstone.your_engine import BEGINNING
from exercises.judging.engine_runs import PROMPTS, TokenByToken, compare, run
from exercises.judging.side_by_side import passed
from exercises.judging.solutions import solved
from exercises.phase3.forked_answers import forked_answers
from phase3_paged_attention.paging import BlockAllocator, BlockManager, PhysicalBlock

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
    right = solved("p3e5_copy_on_write", ("fork", "make_room"))
    mine, course = (forked_answers(*each, PROMPTS[0]) for each in ((fork, make_room), right.values()))
    compare(mine, course, ("blocks copied", mine.num_copied, course.num_copied))


def attention_in_the_engine(paged_attention: Callable) -> None:
    """Exercise 3.6: the learner's loop, beside the course's attention."""
    passed("p3e6_paged_attention", paged_attention)
    compare(run(kind=AttentionCache, part=paged_attention), run())
