# %% [markdown]
# # 5.6 Reading blocks from a side that may fail
#
# One engine computes prompts, another one writes the answers, and blocks of keys and values go from the first to the second. The engine that computed a
# prompt (the **prefill side**) keeps its blocks under a **lease**, until a certain moment. Then it frees them, and other requests write into them. The
# engine that writes the answer (the **decode side**) reads them into blocks of its own. Three things can happen in the middle:
#
# - The prefill side dies. Every `read` and `done` from then on raises `ConnectionError`. What was read before is good.
# - The lease ends. Nothing is raised, and what is read then may belong to another request. So look at the clock *after* reading: a block is good if
#   its reading was over before `lease_until`.
# - The first blocks are in the own cache already, from an earlier request. They should not be read again.
#
# No request is lost: the good blocks at the beginning are used, and the rest of the prompt is computed here.
#
# Write two functions. `load_blocks` reads what is missing and returns how many blocks from the beginning are good. It calls `done()` when it has read
# all that it wants, so that the other side need not wait for the end of the lease. `num_computed` returns the number of computed tokens with which the
# request starts. A block holds `block_size` tokens, the last one perhaps fewer. Even if all blocks came, the last token must be computed here: the next
# token is sampled from what the model says of it.
#
# By hand: `pairs = [(7, 1), (8, 2), (3, 4)]`: their block 7 goes into the own block 1, and so on. `num_cached` is 1, so block 7 is not read. The lease
# ends at 2.0, and each read takes a second. Block 8 is there at 1.0, good. Block 3 is there at 2.0, too late. Two blocks are good: the
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
        pairs: (their block, own block), in the order of the tokens.
        num_cached: so many of the first own blocks are filled already.
        cache: own block -> what it holds.

    Returns:
        how many blocks are good, from the first one on, the cached ones included.
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
        pass  # what has come is good
    return good
    # END SOLUTION


def num_computed(num_good: int, block_size: int, num_tokens: int) -> int:
    """Tokens of a prompt of `num_tokens` that need not be computed any more, if its first `num_good` blocks are good."""
    # BEGIN SOLUTION
    return min(num_good * block_size, num_tokens - 1)
    # END SOLUTION


# %% tags=["check"]
check("p5e6_block_transfer", load_blocks, num_computed)
# %% [markdown]
# The course's own is `copy_blocks` in `phase5_real_gpu/parallel/block_transfer.py`.
# `python phase5_real_gpu/disaggregation.py` loses both sides, one after the other.
