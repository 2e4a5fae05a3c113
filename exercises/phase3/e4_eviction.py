# %% [markdown]
# # 3.4 Eviction order
#
# When a request ends, its full blocks keep their hashes. They are free, but can still be found until they are taken for new
# tokens. After some time all free blocks hold such content. So taking a block nearly always removes cached content
# (**eviction**). Which block should be evicted first?
#
# The usual rule is **LRU**: evict the *least recently used* block. It needs no clock. Keep the free blocks in a queue:
#
# - take from the **front**
# - free to the **back**, so that the most recently used block is evicted last
# - a request frees its blocks from **last to first**: few requests share the end of a text, so it is evicted before the beginning
# - a block **without a hash** (not full) can never be found again. It goes to the **front**, and is taken before cached blocks. Of
#   several such blocks, the one freed first is taken first.
# - a **hit** removes a block from the queue, wherever it is: a request reads it now
#
# By hand: the queue is `4 5`. A request with the table `[1, 2, 3]` ends. Blocks 1 and 2 are full, block 3 is not (`num_full` = 2):
#
#     freed in this order      3  2  1
#     3 has no hash, front     3 4 5
#     2 and then 1, back       3 4 5 2 1
#     hit(2)                   3 4 5 1
#     take()                   3, and the queue is 4 5 1
#
# A Python list is enough. (Removing an entry from its middle takes time in proportion to its length, so the
# course's own `BlockAllocator` is a linked list.)
# %%
from exercises.grading import check, hint


# %% tags=["answer"]
class FreeList:
    """Free blocks, in the order of their eviction."""

    def __init__(self, blocks: list[int]) -> None:
        self.blocks = list(blocks)  # the block that is taken next comes first

    def take(self) -> int:
        """Remove the block that is evicted next, and return it."""
        # BEGIN SOLUTION
        return self.blocks.pop(0)
        # END SOLUTION

    def hit(self, block: int) -> None:
        """Remove this free block, which was found by its hash and is in use again."""
        # BEGIN SOLUTION
        self.blocks.remove(block)
        # END SOLUTION

    def give_back(self, table: list[int], num_full: int) -> None:
        """Free the blocks of a request that has ended. The first `num_full` blocks of its table have a hash."""
        # BEGIN SOLUTION
        named, nameless = table[:num_full], table[num_full:]
        self.blocks = nameless[::-1] + self.blocks + named[::-1]
        # END SOLUTION


# %% tags=["check"]
check("p3e4_eviction", FreeList)
# %% [markdown]
# ## Into the engine
#
# The small engine that you build in this course (`lab mine` runs it) gets prompts with a common beginning again and again, and other
# prompts in between. Its memory is too small for all blocks. If your order is the course's, it evicts the same blocks and finds the
# same blocks.
# %% tags=["engine"]
from exercises.phase3.into_engine import order_in_the_engine

order_in_the_engine(FreeList)
