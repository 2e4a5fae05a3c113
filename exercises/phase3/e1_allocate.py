# %% [markdown]
# # 3.1 Allocate and free
#
# The memory for keys and values is divided into **blocks** of equal size, with room for 16 tokens each. All free blocks are
# equivalent, so an allocator needs no search: it keeps a list of the free blocks (the **free list**), takes the first one, and
# appends freed blocks to the end. (In the chapter's first table they go to the front. Exercise 3.4 uses both ends.)
#
# Requests can *share* blocks: three answers to one prompt read the same blocks. A block may be reused only
# when no table points to it any more. So each block has a **reference count**: the number of block tables that point to it.
#
# You write three methods. Do not rename `free` and `ref_count`: the engine reads and changes both. The course's version is in
# `phase3_paged_attention/paging/block_allocator.py` and `block_manager.py`; read it afterwards.
#
# By hand, with blocks 1, 2, 3 (block 0, the **null block**, is never allocated):
#
#     a = Allocator(4)      free: 1 2 3
#     x = a.take()          x = 1, its count is 1          free: 2 3
#     a.share(x)            its count is 2                 free: 2 3
#     a.give_back([x])      its count is 1                 free: 2 3
#     a.give_back([x])      its count is 0                 free: 2 3 1
#     a.give_back([x])      ValueError: it is free already
#
# A table lists a block at most once, and so does the argument of `give_back`.
#
# Two rules for errors. If no block is free, `take` raises a `MemoryError`: the engine catches it and frees
# blocks. If a block in the argument of `give_back` is already free, `give_back` raises a `ValueError` *and changes nothing*.
# %%
from collections import deque

from exercises.grading import check, hint


# %% tags=["answer"]
class Allocator:
    """Allocates blocks 1 to num_blocks - 1, and counts the tables that point to each."""

    def __init__(self, num_blocks: int) -> None:
        self.free = deque(range(1, num_blocks))  # the block that is taken next comes first
        self.ref_count = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self.free)

    def take(self) -> int:
        """Take the first free block and set its count to 1. MemoryError if there is none."""
        # BEGIN SOLUTION
        if not self.free:
            raise MemoryError("no free block")
        block = self.free.popleft()
        self.ref_count[block] = 1
        return block
        # END SOLUTION

    def share(self, block: int) -> None:
        """Count one more table that points to this block, which is in use."""
        # BEGIN SOLUTION
        self.ref_count[block] += 1
        # END SOLUTION

    def give_back(self, blocks: list[int]) -> None:
        """Free the blocks of a table; those that reach count 0 join the end of the free list. ValueError: one is free already."""
        # BEGIN SOLUTION
        if any(self.ref_count[block] == 0 for block in blocks):
            raise ValueError(f"one of {blocks} is free already")
        for block in blocks:
            self.ref_count[block] -= 1
            if self.ref_count[block] == 0:
                self.free.append(block)
        # END SOLUTION


# %% tags=["check"]
check("p3e1_allocate", Allocator)
# %% [markdown]
# ## Into the engine
#
# The small engine that you build in this course (`lab mine` runs it) gets all its blocks from your allocator. Memory is short, so
# requests wait and are preempted. Requests with a common beginning share blocks.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p3e1_allocate", Allocator)
