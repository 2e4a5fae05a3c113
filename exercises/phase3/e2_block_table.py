# %% [markdown]
# # 3.2 Block table lookup
#
# A request believes that its keys and values lie in one long row. They lie in blocks, anywhere. Its **block table** lists them:
# entry 0 is the block with its first tokens, entry 1 the block with the next ones.
#
# Before each step the engine has to know where the new tokens' keys and values go. A place is called a **slot**, and slots are
# numbered through the whole memory: with 4 tokens a block, block 0 has slots 0 to 3, block 1 has slots 4 to 7, block 7 has
# slots 28 to 31.
#
# By hand, for `block_table = [7, 3, 9]` and 4 tokens a block. Where does token 6 go?
#
# - 6 = 1 x 4 + 2, so it is in the request's block number 1, at place 2 (places count from 0)
# - the table says that block number 1 is block 3 of the memory
# - block 3 begins at slot 12, so the slot is 14
#
# Write `slots`: the slots of `num_tokens` tokens, the first of which is token number `first` of its request. In the engine
# that is done in `phase4_scheduler/engine/model_runner.py`.
# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def slots(block_table: list[int], first: int, num_tokens: int, block_size: int) -> list[int]:
    """Slots of tokens first, first + 1, ...: where in the memory their keys and values are stored."""
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
# In the small engine that you build in this course (`lab mine` runs it), keys and values are stored where your function says from
# now on, and read from there. If one of them went to a wrong place, the story would change.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p3e2_block_table", slots)
