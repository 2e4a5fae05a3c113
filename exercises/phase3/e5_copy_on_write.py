# %% [markdown]
# # 3.5 Copy-on-write
#
# Three answers to one prompt: the prompt is stored once, and three block tables point to it. This is a **fork**. As long as the
# answers only read, that is all. But the prompt's last block is usually half full, and all three answers want to write
# their next token into the very same place.
#
# **Copy-on-write**: an answer that writes into a block that others read as well gets a copy of it first. The last reader writes in
# place. Blocks that are full are never written again, so they stay shared for ever.
#
# By hand, 4 tokens a block. A prompt of 6 tokens has the table `[1, 2]`, and block 2 holds two of them. After a fork both tables
# are `[1, 2]`, and both counts are 2.
#
# - the twin writes token 6. Its place is in block 2, which has two readers. So it takes block 3, copies block 2 into it, and
#   its table is `[1, 3]` now. Block 2 has one reader left.
# - the first one writes its token 6. Block 2 is its own by now: no copy.
# - later one of them has 8 tokens, two full blocks. Token 8 needs a new block: no copy either. (Likewise token 0 of an empty
#   table.)
#
# You write two functions. The `pool` that they get knows four things:
#
#     pool.block_size            tokens a block
#     pool.ref_count[block]      how many tables point to a block: read it, change it
#     pool.take()                a free block, with a count of 1
#     pool.copy(source, target)  copies what is in a block
#
# In the course this is `ForkingBlockManager`, in `phase3_paged_attention/sharing/fork.py`.
# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def fork(table: list[int], pool) -> list[int]:
    """A second table with the same past. Nothing is copied."""
    # BEGIN SOLUTION
    for block in table:
        pool.ref_count[block] += 1
    return list(table)
    # END SOLUTION


def make_room(table: list[int], num_tokens: int, pool) -> None:
    """The table's request has `num_tokens` tokens and writes one more right after this call.

    Changes `table` so that there is a place for it, in a block that no other answer reads.
    """
    # BEGIN SOLUTION
    at = num_tokens // pool.block_size
    if at == len(table):
        table.append(pool.take())
    elif pool.ref_count[table[at]] > 1:
        new = pool.take()
        pool.copy(table[at], new)
        pool.ref_count[table[at]] -= 1
        table[at] = new
    # END SOLUTION


# %% tags=["check"]
check("p3e5_copy_on_write", fork, make_room)
# %% [markdown]
# ## Into the course
#
# The paper of 2023 forked; the engine of phase 4 does not, and neither does vLLM since 2025. There, three answers are three
# requests, which find the full blocks of their prompt in the prefix cache. So here your tables grow beside those of the course's
# `ForkingBlockManager`: a prompt of 6 tokens is forked, and one answer is forked again in the middle of a block.
# %% tags=["engine"]
from exercises.judging.engine_runs import passed, same_or_stop
from exercises.phase3.pool import Pool
from phase3_paged_attention.paging import BlockTable
from phase3_paged_attention.sharing import ForkingBlockManager

passed("p3e5_copy_on_write", fork, make_room)
pool, manager = Pool(30, 4), ForkingBlockManager(30, 4)
yours, course = [[]], [BlockTable()]
for num_tokens in range(24):
    if num_tokens in (6, 14):
        yours.append(fork(yours[0], pool))
        course.append(manager.fork(course[0]))
    for mine, theirs in zip(yours, course):
        make_room(mine, num_tokens, pool)
        manager.reserve(theirs, num_tokens + 1)
        same_or_stop(mine, theirs.block_ids, says="the course's table is another one")
copies = [(copy.source, copy.target) for copy in manager.take_copies()]
same_or_stop(pool.copies, copies, says="the course copies other blocks")
print("Three answers of 24 tokens, each with the course's table:", *yours, sep="\n")
print("and with its copies (source, target):", *copies)
