# %% [markdown]
# # 4.8 Which drafts are accepted
#
# A small draft model has guessed the next tokens of an answer: the **drafts**. The model has computed all of them in one step, and has at
# each place its own distribution, `p[j]`. The draft model sampled draft `j` from its distribution, `q[j]`.
#
# The answer must have the same distribution as if the model had sampled every token itself. Rejection sampling achieves this:
#
# - From left to right: draft `x` at place `j` is **accepted** if `points[j] < p[j][x] / q[j][x]`. A point is a random number, at least 0
#   and below 1. So a draft with at least the same probability in `p` as in `q` is always accepted.
# - The first draft that is not accepted is **rejected**, with all later ones, which were guessed to follow it. The token in its
#   place is sampled from `max(p[j] - q[j], 0)`: tokens that are more probable in `p` than in `q`.
# - If all drafts are accepted, one more token is sampled from the last row, `p[k]`: the **bonus token**. The step has already computed its
#   distribution.
#
# There are `k` drafts, `k` rows of `q`, `k + 1` rows of `p`, and `k + 1` points. The last point is for the sampled token: call
# `draw(weights, points[k])`. (The weights need not add up to 1.) Use no point twice: the point of a rejected draft is known to be
# large.
#
# By hand: `p = [[0.5, 0.2, 0.3], [0.1, 0.1, 0.8]]`, `q = [[0.2, 0.7, 0.1]]`, and the draft is 1. It is accepted if its point is below
# 0.2 / 0.7 = 0.29. With the point 0.1 it is accepted, and a token from `p[1]` follows. With 0.6 it is rejected, and the token is sampled with
# the weights 0.3, 0, 0.2.

# %%
from exercises.grading import check, hint
from exercises.phase4.drafting import draw


# %% tags=["answer"]
def verify(p: list[list[float]], q: list[list[float]], drafts: list[int], points: list[float]) -> list[int]:
    """Return the accepted drafts and one more token: 1 to k + 1 tokens."""
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
# `tales-draft` drafts, `tales` verifies, and your function decides which drafts are accepted. The table compares the frequency of the first
# token in many answers with the probability that the model gives it.

# %% tags=["engine"]
from exercises.phase4.into_engine import verified_drafts_in_the_engine

verified_drafts_in_the_engine(verify)
