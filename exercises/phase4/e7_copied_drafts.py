# %% [markdown]
# # 4.7 Copied drafts
#
# A decode step reads all weights to compute one token. Four tokens would cost little more, if the next three were known.
# So a drafter guesses them: the **drafts**. The model verifies all drafts in its next step. A wrong draft costs time, and changes no
# answer.
#
# The cheapest drafter copies (**prompt lookup**, or n-gram): it searches the *ending* of the text earlier in the text, and proposes the
# tokens that followed there.
#
# - Take the longest ending, of `most` down to `least` tokens, that occurs earlier. If there is none, return no draft: `[]`.
# - If it occurs several times, take the *first* place.
# - The occurrence may overlap the ending, but is not the ending itself.
# - Propose up to `k` tokens that follow it; fewer if the text ends before.
#
# By hand: `7 1 2 3 4 5 9 2 3`, `least` 2, `most` 3, `k` 2. The ending of three tokens, `9 2 3`, does not occur earlier. The ending of two
# tokens, `2 3`, occurs at place 2, and `4 5` follows. These are the drafts.
#
# Another example: `8 8 8 8`, `least` 1, `most` 2, `k` 3. The ending `8 8` occurs first at place 0, and `8 8` follows: two drafts, because
# the text ends there.

# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def propose(tokens: list[int], least: int, most: int, k: int) -> list[int]:
    """Propose up to `k` tokens that followed the first occurrence of the text's ending."""
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
# The engine now takes its drafts from your function. Your drafts change the number of steps, but no word of the answers.

# %% tags=["engine"]
from exercises.phase4.into_engine import copied_drafts_in_the_engine

copied_drafts_in_the_engine(propose)
