# %% [markdown]
# # 3.5 Copy-on-write
#
# Three answers to one prompt: the prompt is stored once, and three block tables point to it. This is a **fork**. Reading needs
# nothing more. But the prompt's last block is usually partly full, and all three answers would write their next token into
# the same place.
#
# **Copy-on-write**: if an answer writes into a block that another table also points to, it first gets a copy of the block. The last
# reader writes in place. Full blocks are never written again, so they stay shared.
#
# By hand, with 4 tokens per block. A prompt of 6 tokens has the table `[1, 2]`, and block 2 holds two of its tokens. After a fork both
# tables are `[1, 2]`, and both counts are 2.
#
# - The forked answer writes token 6. Its place is in block 2, which has two readers. So the answer takes block 3, copies block 2 into
#   it, and its table becomes `[1, 3]`. Block 2 has one reader left.
# - The first answer writes its token 6. Block 2 has no other reader any more: no copy.
# - Later an answer has 8 tokens, two full blocks. Token 8 needs a new block, and no copy. (So does token 0 of an empty
#   table.)
#
# You write two functions. Their `pool` has four members:
#
#     pool.block_size            tokens per block
#     pool.ref_count[block]      number of tables that point to a block: read it, change it
#     pool.take()                a free block, with a count of 1
#     pool.copy(source, target)  copies the content of a block
#
# The course's version is `ForkingBlockManager` in `phase3_paged_attention/sharing/fork.py`.
# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def fork(table: list[int], pool) -> list[int]:
    """Return a second table with the same blocks. No block is copied."""
    # BEGIN SOLUTION
    for block in table:
        pool.ref_count[block] += 1
    return list(table)
    # END SOLUTION


def make_room(table: list[int], num_tokens: int, pool) -> None:
    """Make room for one more token of a request that has `num_tokens` tokens.

    Changes `table` so that the token has a place in a block that no other answer reads.
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
# The vLLM paper of 2023 forks; the engine of phase 4 does not, nor does vLLM since 2025. There, three answers are three
# requests, which find the full blocks of their prompt in the prefix cache. So this cell compares your tables with those of the course's
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
        same_or_stop(mine, theirs.block_ids, says="the course's table differs")
copies = [(copy.source, copy.target) for copy in manager.take_copies()]
same_or_stop(pool.copies, copies, says="the course copies other blocks")
print("Three answers of 24 tokens, each with the course's table:", *yours, sep="\n")
print("and with its copies (source, target):", *copies)
