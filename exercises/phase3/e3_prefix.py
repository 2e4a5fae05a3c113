# %% [markdown]
# # 3.3 Chain hash and prefix hit
#
# Many requests share a beginning. Keys and values depend only on the tokens so far, so a full block that one request has computed
# can serve another request that begins with the same tokens. This is **prefix caching**. It needs a name for the content of a block,
# its **block hash**, and a table of the cached blocks.
#
# **The block hash.** `hash_block(parent, tokens)` returns the hash (32 bytes) of a block's tokens behind a `parent`, the hash of the
# block before. The first block has the parent `b""`. So a hash identifies the block's own tokens and all tokens before them: it is a
# **chain hash**. A block that is not full has no hash, because its content still changes.
#
# By hand, with 4 tokens per block and the tokens 1 to 10:
#
#     hash of block 0    n0 = hash_block(b"", [1, 2, 3, 4])
#     hash of block 1    n1 = hash_block(n0, [5, 6, 7, 8])
#     9 and 10           no hash yet
#
# **The hit.** `cached` maps a hash to a block id. Go through the hashes from the first on, and collect blocks
# until a hash is missing. Later blocks cannot be used: the tokens in between would be missing.
#
# At least the *last token* must remain. If every token were found, the step would compute no token, and there would be no logits
# for the next one. With `cached = {n0: 7, n1: 3}`:
#
#     tokens 1 to 10     -> [7, 3]     tokens 9 and 10 remain
#     tokens 1 to 8      -> [7]        with [7, 3] no token would remain
#
# The course's version is `BlockManager.match_prefix` in `phase3_paged_attention/paging/block_manager.py`.
# %%
from exercises.grading import check, hint
from phase3_paged_attention.paging import hash_block


# %% tags=["answer"]
def block_names(token_ids: list[int], block_size: int) -> list[bytes]:
    """Compute the hash of each full block."""
    # BEGIN SOLUTION
    names, parent = [], b""
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent = hash_block(parent, token_ids[end - block_size : end])
        names.append(parent)
    return names
    # END SOLUTION


def find_prefix(token_ids: list[int], block_size: int, cached: dict[bytes, int]) -> list[int]:
    """Find the blocks with the longest cached beginning of these tokens; at least one token remains."""
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
# Prompts with a common beginning arrive in two waves at the small engine that you build in this course (`lab mine` runs it). Your
# functions hash and find its blocks.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p3e3_prefix", block_names, find_prefix)
