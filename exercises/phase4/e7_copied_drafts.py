# %% [markdown]
# # 4.7 Copied drafts
#
# A decode step reads all weights to compute one token. Four tokens would cost little more, if only the next three were known.
# So guess them: the **drafts**. The model checks them all in its next step, and a wrong guess costs nothing but time.
#
# The cheapest guesser copies (**prompt lookup**, or n-gram): find the *ending* of the text earlier in it, and propose what
# followed there.
#
# - Take the longest ending, of `most` down to `least` tokens, that occurs somewhere before. With none there is no draft: `[]`.
# - If it occurs several times, take the *first* place.
# - The occurrence may overlap the ending, but is not the ending itself.
# - Propose up to `k` tokens that follow it; fewer if the text ends before.
#
# By hand: `7 1 2 3 4 5 9 2 3`, `least` 2, `most` 3, `k` 2. The ending of three, `9 2 3`, occurs nowhere else. The ending of two,
# `2 3`, does: at place 2. `4 5` followed. That is the draft.
#
# Another one: `8 8 8 8`, `least` 1, `most` 2, `k` 3. The ending `8 8` occurs at place 0 first, and `8 8` follows: two tokens, the text
# has no third.

# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def propose(tokens: list[int], least: int, most: int, k: int) -> list[int]:
    """Up to `k` tokens that followed the text's ending where it occurred first."""
    # BEGIN SOLUTION
    for length in range(min(most, len(tokens) - 1), least - 1, -1):
        ending = tokens[-length:]
        for place in range(len(tokens) - length):
            if tokens[place : place + length] == ending:
                return tokens[place + length :][:k]
    return []
    # END SOLUTION


# %% tags=["check"]
check("p4e7_copied_drafts", propose)

# %% [markdown]
# ## Into the engine
#
# The engine takes drafts from your function now. No word changes, whatever you propose. But the number of steps does.

# %% tags=["engine"]
from exercises.phase4.drafts_in_engine import copied_drafts_in_the_engine

copied_drafts_in_the_engine(propose)
