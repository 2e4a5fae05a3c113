# %% [markdown]
# # 4.8 Which drafts are accepted
#
# A small model has guessed the next tokens of an answer: the **drafts**. The model has computed them all in one step, and tells at each
# place what it would draw from: the distribution `p[j]`. The guesser drew draft `j` from its own distribution, `q[j]`.
#
# The answer must be distributed as if the model had drawn every token itself. This rule does it (rejection sampling):
#
# - From left to right: draft `x` at place `j` is **accepted** if `points[j] < p[j][x] / q[j][x]`. A point is a random number from 0 to 1. So a
#   draft that the model likes at least as well as the guesser is always accepted.
# - The first that is not accepted is **rejected**, and all later ones with it: they were guesses of what follows *it*. The token in its
#   place is drawn from `max(p[j] - q[j], 0)`, what the model likes more than the guesser.
# - If all are accepted, one token more is drawn from the last row, `p[k]`: the **bonus token**. Its distribution is there anyway.
#
# There are `k` drafts, `k` rows of `q`, `k + 1` rows of `p`, and `k + 1` points. The last point is for the token that is drawn: call
# `draw(weights, points[k])`. (The weights need not add up to 1.) No point is used twice: that a draft was rejected says that its point was a large
# one.
#
# By hand: `p = [[0.5, 0.2, 0.3], [0.1, 0.1, 0.8]]`, `q = [[0.2, 0.7, 0.1]]`, the draft is 1. It stands if its point is below 0.2 / 0.7 = 0.29.
# With 0.1 it stands, and a token from `p[1]` follows. With 0.6 it is rejected, and the token comes from the weights 0.3, 0, 0.2.

# %%
from exercises.grading import check, hint
from exercises.phase4.drafting import draw


# %% tags=["answer"]
def verify(p: list[list[float]], q: list[list[float]], drafts: list[int], points: list[float]) -> list[int]:
    """The accepted drafts, and one token more: 1 to k + 1 tokens."""
    # BEGIN SOLUTION
    for j, x in enumerate(drafts):
        if points[j] >= p[j][x] / q[j][x]:
            left = [max(a - b, 0) for a, b in zip(p[j], q[j])]
            return [*drafts[:j], draw(left, points[-1])]
    return [*drafts, draw(p[-1], points[-1])]
    # END SOLUTION


# %% tags=["check"]
check("p4e8_verified_drafts", verify)

# %% [markdown]
# ## Into the engine
#
# `tales-draft` drafts, `tales` verifies, and your function decides which drafts are accepted. The table counts the first token of many answers
# against what the model alone would give.

# %% tags=["engine"]
from exercises.phase4.drafts_in_engine import verified_drafts_in_the_engine

verified_drafts_in_the_engine(verify)
