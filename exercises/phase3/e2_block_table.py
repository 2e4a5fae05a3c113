# %% [markdown]
# # 3.2 Block table lookup
#
# The keys and values of a request are stored in blocks, which may be anywhere in memory. The request's **block table** lists them:
# entry 0 is the block with its first tokens, entry 1 the block with the next tokens.
#
# Before each step the engine computes where to store the new tokens' keys and values. The place of one token is called a **slot**. Slots
# are numbered through the whole memory: with 4 tokens per block, block 0 has slots 0 to 3, block 1 has slots 4 to 7, block 7 has
# slots 28 to 31.
#
# By hand, for `block_table = [7, 3, 9]` and 4 tokens per block, the slot of token 6:
#
# - 6 = 1 x 4 + 2, so the token is in the request's logical block 1, at place 2 (places count from 0)
# - entry 1 of the table is block 3
# - block 3 begins at slot 12, so the slot is 14
#
# Write `slots`: the slots of `num_tokens` tokens, the first of which is token `first` of its request. The engine does this in
# `phase4_scheduler/engine/model_runner.py`.
# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def slots(block_table: list[int], first: int, num_tokens: int, block_size: int) -> list[int]:
    """Compute the slots of tokens first, first + 1, ...: the places of their keys and values in memory."""
    # BEGIN SOLUTION
    found = []
    for token in range(first, first + num_tokens):
        physical = block_table[token // block_size]
        found.append(physical * block_size + token % block_size)
    return found
    # END SOLUTION


# %% tags=["check"]
check("p3e2_block_table", slots)
# %% [markdown]
# ## Into the engine
#
# The small engine that you build in this course (`lab mine` runs it) now stores keys and values in the slots of your function, and
# reads them there. A wrong slot would change the story.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p3e2_block_table", slots)
