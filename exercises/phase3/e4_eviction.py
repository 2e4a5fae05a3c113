# %% [markdown]
# # 3.4 Eviction order
#
# When a request ends, its full blocks keep their names. They are free, but until they are taken for new tokens they can
# still be found. Memory is always full of such leftovers. So taking a block nearly always means forgetting something
# (**eviction**). What should be forgotten first?
#
# The usual answer is **LRU**: what was *least recently used*. It needs no clock. Keep the free blocks in a row:
#
# - take from the **front**
# - give back to the **back**, so that what was used last is forgotten last
# - a request gives back its blocks from **last to first**: the end of a text, which few share, is forgotten before its beginning
# - a block **without a name** (not full) can never be found again. It goes to the **front**, to be taken before anything of value. Of
#   several, the one freed first is taken first.
# - a **hit** takes a block out of the row, wherever it stands: a request reads it now
#
# By hand: the row is `4 5`. A request with the table `[1, 2, 3]` ends. Blocks 1 and 2 are full, block 3 is not (`num_full` = 2):
#
#     freed in this order      3  2  1
#     3 has no name, front     3 4 5
#     2 and then 1, back       3 4 5 2 1
#     hit(2)                   3 4 5 1
#     take()                   3, and the row is 4 5 1
#
# A Python list will do. (Taking something out of its middle costs time in proportion to its length, which is why the
# course's own `BlockAllocator` is a linked list.)
# %%
from exercises.grading import check, hint


# %% tags=["answer"]
class FreeList:
    """Free blocks, in the order in which they are forgotten."""

    def __init__(self, blocks: list[int]) -> None:
        self.blocks = list(blocks)  # the one to be taken next stands first

    def take(self) -> int:
        """The block that is forgotten next. It leaves the row."""
        # BEGIN SOLUTION
        return self.blocks.pop(0)
        # END SOLUTION

    def hit(self, block: int) -> None:
        """This free block was found by its name, and is in use again."""
        # BEGIN SOLUTION
        self.blocks.remove(block)
        # END SOLUTION

    def give_back(self, table: list[int], num_full: int) -> None:
        """A request has ended. The first `num_full` blocks of its table have a name, the others have none."""
        # BEGIN SOLUTION
        named, nameless = table[:num_full], table[num_full:]
        self.blocks = nameless[::-1] + self.blocks + named[::-1]
        # END SOLUTION


# %% tags=["check"]
check("p3e4_eviction", FreeList)
# %% [markdown]
# ## Into the engine
#
# Prompts that begin alike come again and again to the small engine that you build in this course (`lab mine` runs it), others come
# in between, and memory is too small to keep everything. If your order is the course's, the same blocks are forgotten and the
# same ones are found.
# %% tags=["engine"]
from exercises.phase3.into_engine import order_in_the_engine

order_in_the_engine(FreeList)
