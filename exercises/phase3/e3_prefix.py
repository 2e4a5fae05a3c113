# %% [markdown]
# # 3.3 Chain hash and prefix hit
#
# Many requests begin alike. Keys and values depend only on the tokens up to there, so a full block that one request has computed
# can serve another one that begins with the same tokens. This is **prefix caching**. It needs two things: names for blocks,
# and a way to look them up.
#
# **The name.** `hash_block(parent, tokens)` gives a name (32 bytes) for some tokens behind a `parent`, the name of the block before.
# The first block has `b""` for a parent. So a name stands for the block's own tokens and for everything before them. That is a
# **chain hash**. A block that is not full has no name: its content still changes.
#
# By hand, with 4 tokens a block and the tokens 1 to 10:
#
#     name of block 0    n0 = hash_block(b"", [1, 2, 3, 4])
#     name of block 1    n1 = hash_block(n0, [5, 6, 7, 8])
#     9 and 10           no name yet
#
# **The hit.** `cached` says which block holds what: name -> block id. Go through the names from the first on, and collect blocks
# until one is missing. What stands behind a miss is of no use: the tokens in between would be lacking.
#
# One rule is easily forgotten. At least the *last token* has to be left over. If everything were found, nothing would be
# computed, and there would be no scores to pick the next token from. With `cached = {n0: 7, n1: 3}`:
#
#     tokens 1 to 10     -> [7, 3]     tokens 9 and 10 are left
#     tokens 1 to 8      -> [7]        with [7, 3] nothing would be left
#
# The course's own version is `BlockManager.match_prefix` in `phase3_paged_attention/paging/block_manager.py`.
# %%
from exercises.grading import check, hint
from phase3_paged_attention.paging import hash_block


# %% tags=["answer"]
def block_names(token_ids: list[int], block_size: int) -> list[bytes]:
    """The name of each full block."""
    # BEGIN SOLUTION
    names, parent = [], b""
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent = hash_block(parent, token_ids[end - block_size : end])
        names.append(parent)
    return names
    # END SOLUTION


def find_prefix(token_ids: list[int], block_size: int, cached: dict[bytes, int]) -> list[int]:
    """Blocks that hold the longest cached beginning of these tokens; at least one token is left over."""
    # BEGIN SOLUTION
    found = []
    for name in block_names(token_ids[:-1], block_size):
        if name not in cached:
            break
        found.append(cached[name])
    return found
    # END SOLUTION


# %% tags=["check"]
check("p3e3_prefix", block_names, find_prefix)
# %% [markdown]
# ## Into the engine
#
# Prompts that begin alike come in two waves to the small engine that you build in this course (`lab mine` runs it). Your names,
# your hits.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p3e3_prefix", block_names, find_prefix)
