# %% [markdown]
# # 5.6 Reading blocks from a side that may fail
#
# One engine computes prompts, another engine writes the answers, and blocks of keys and values are copied from the first to the second. The engine that
# computed a prompt (the **prefill side**) keeps its blocks under a **lease**, until a fixed time. Then it frees them, and other requests write into them.
# The engine that writes the answer (the **decode side**) reads them into its own blocks. Three events can happen during the transfer:
#
# - The prefill side dies. From then on every `read` and `done` raises `ConnectionError`. Blocks that were read before are good.
# - The lease ends. No error is raised, and later reads may return data of another request. So check the clock *after* each read: a block is good if
#   its read ended before `lease_until`.
# - The first blocks are already in the own cache, from an earlier request. Do not read them again.
#
# No request is lost: it uses the good blocks at the beginning, and the decode side computes the rest of the prompt.
#
# Write two functions. `load_blocks` reads the missing blocks and returns the number of good blocks from the beginning. After the last
# read, or at once if there is nothing to read, it calls `done()`, so that the other side can free the blocks before the end of the
# lease. `num_computed` returns the number of computed tokens with which the request starts. A block holds `block_size` tokens, the last block perhaps fewer. Even if all blocks arrived, the last token must be computed
# here, because the next token is sampled from its logits.
#
# By hand: `pairs = [(7, 1), (8, 2), (3, 4)]`: the other side's block 7 is copied into the own block 1, and so on. `num_cached` is 1, so block 7 is not
# read. The lease ends at 2.0, and each read takes a second. Block 8 arrives at 1.0: good. Block 3 arrives at 2.0: too late. Two blocks are good: the
# cached one and block 8. With `block_size` 4 and 11 tokens the request starts with 8 computed tokens.
# %%
from exercises.grading import check, hint
from exercises.phase5.other_side import OtherSide


# %% tags=["answer"]
def load_blocks(
    other: OtherSide, pairs: list[tuple[int, int]], num_cached: int, cache: dict[int, str]
) -> int:
    """Read blocks into the own cache.

    Args:
        other: has `read(block)`, `done()`, `clock()` and `lease_until`.
        pairs: (block of the other side, own block), in the order of the tokens.
        num_cached: the number of first own blocks that are already filled.
        cache: own block -> its content.

    Returns:
        the number of good blocks, from the first one on, including the cached ones.
    """
    # BEGIN SOLUTION
    good = num_cached
    try:
        for theirs, own in pairs[num_cached:]:
            cache[own] = other.read(theirs)
            if other.clock() >= other.lease_until:
                return good
            good += 1
        other.done()
    except ConnectionError:
        pass  # the blocks read before are good
    return good
    # END SOLUTION


def num_computed(num_good: int, block_size: int, num_tokens: int) -> int:
    """Compute how many of a prompt's `num_tokens` tokens are computed already, if its first `num_good` blocks are good."""
    # BEGIN SOLUTION
    return min(num_good * block_size, num_tokens - 1)
    # END SOLUTION


# %% tags=["check"]
check("p5e6_block_transfer", load_blocks, num_computed)
# %% [markdown]
# The course's version is `copy_blocks` in `phase5_real_gpu/parallel/block_transfer.py`.
# `python phase5_real_gpu/disaggregation.py` transfers the blocks of six prompts in this way.
