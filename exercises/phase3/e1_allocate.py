# %% [markdown]
# # 3.1 Allocate and free
#
# The memory for keys and values is cut into **blocks** of equal size, room for 16 tokens each. Any free block is as good as
# any other. So an allocator needs no search: it keeps a list of the free ones (the **free list**), takes the first, and puts
# it back at the end later. (From 3.4 on it matters which end; so keep to it from the beginning.)
#
# One thing makes it interesting. Requests *share* blocks: three answers to one prompt read the same prompt. A block may be
# reused only when the last reader has gone. So each block has a **reference count**: how many block tables point to it.
#
# You write three methods. Keep `free` and `ref_count` as they are given: the engine reads and changes both. The course's own version is spread over `phase3_paged_attention/paging/block_allocator.py` and
# `block_manager.py`; look at it afterwards.
#
# By hand, with blocks 1, 2, 3 (block 0, the **null block**, is never given out):
#
#     a = Allocator(4)      free: 1 2 3
#     x = a.take()          x = 1, its count is 1          free: 2 3
#     a.share(x)            its count is 2                 free: 2 3
#     a.give_back([x])      its count is 1                 free: 2 3
#     a.give_back([x])      its count is 0                 free: 2 3 1
#     a.give_back([x])      ValueError: it is free already
#
# A table lists a block once at most, and so does the list that `give_back` gets.
#
# Two rules for when something is wrong. With nothing free, `take` raises a `MemoryError`: the engine catches that, and makes
# room. And a `give_back` that lists a block which is free already raises a `ValueError` *and changes nothing at all*.
# %%
from collections import deque

from exercises.grading import check, hint


# %% tags=["answer"]
class Allocator:
    """Gives out blocks 1 to num_blocks - 1, and counts how many tables point to each."""

    def __init__(self, num_blocks: int) -> None:
        self.free = deque(range(1, num_blocks))  # the next one to be taken stands first
        self.ref_count = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self.free)

    def take(self) -> int:
        """The first free block, now with a count of 1. MemoryError if there is none."""
        # BEGIN SOLUTION
        if not self.free:
            raise MemoryError("no free block")
        block = self.free.popleft()
        self.ref_count[block] = 1
        return block
        # END SOLUTION

    def share(self, block: int) -> None:
        """One more table points to this block, which is in use."""
        # BEGIN SOLUTION
        self.ref_count[block] += 1
        # END SOLUTION

    def give_back(self, blocks: list[int]) -> None:
        """A table is gone: its blocks without a reader join the end of the free list. ValueError: one is free already."""
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
# requests wait and are preempted. Requests that begin alike share blocks.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p3e1_allocate", Allocator)
