# %% [markdown]
# # 2.2 One head of attention
#
# A token asks a question (its query), each token it may see shows a label (its key) and carries a content (its value). The
# token compares its query with all keys, turns the scores into weights that add up to 1, and takes the sum of the
# values with these weights:
#
#     out = softmax(q k^T / sqrt(d)) v        d: numbers in a vector
#
# Here q holds one query a row, k one key a row, v one value a row. k^T is k with rows and columns exchanged, so `q k^T` is a
# table of scores: a row for each query, a column for each key.
#
# **Softmax** turns scores into weights: e to the power of each score, divided by the sum of these. A token that must not be
# seen gets the score minus infinity *before* the softmax. Its weight is then exactly 0, and the others add up to 1.
#
# By hand, with d = 1: query 1, keys 0 and ln 3 = 1.0986, values 10 and 20. The scores are 0 and 1.0986, e to their
# power is 1 and 3, the weights are 1/4 and 3/4. So the result is 10/4 + 60/4 = 17.5. If the second token may not be
# seen it is 10.
#
# Scores can be large. e to the power of 1,000 is more than a float can hold; `torch.softmax` takes care of that by first
# subtracting the largest score. If you write your own, do the same.
# %%
import torch

from exercises.grading import check, hint


# %% tags=["answer"]
def one_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention of one head: q [N, d], k and v [M, d], mask [N, M] (True: may look; at one key at least) -> [N, d]."""
    # BEGIN SOLUTION
    scores = q @ k.T / q.shape[-1] ** 0.5
    weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
    return weights @ v
    # END SOLUTION


# %% tags=["check"]
check("p2e2_one_head", one_head)
# %% [markdown]
# ## Into the engine
#
# `tales` has 6 layers of 4 heads. In the small engine that you build in this course (`lab mine` runs it), every one of them, for
# every token, now goes through your function. The course's large engine computes all heads of a layer in one call, which saves
# starting many small operations. With 4 heads it hardly shows here: the rest of a step takes much longer. On a GPU, where
# starting an operation takes longer than such a small one lasts, it does.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p2e2_one_head", one_head)
