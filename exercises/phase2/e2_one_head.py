# %% [markdown]
# # 2.2 One head of attention
#
# A token has a query, and each token that it may attend to has a key and a value. Attention compares the query with all keys,
# turns the scores into weights that add up to 1, and returns the sum of the values with these weights:
#
#     out = softmax(q k^T / sqrt(d)) v        d: numbers in a vector
#
# Each row of q is a query, each row of k a key, each row of v a value. k^T is k with rows and columns exchanged, so `q k^T` is a
# table of scores: a row for each query, a column for each key.
#
# **Softmax** turns scores into weights: e to the power of each score, divided by the sum of these. A masked token gets the score
# minus infinity *before* the softmax. Its weight is then exactly 0, and the other weights add up to 1.
#
# By hand, with d = 1: query 1, keys 0 and ln 3 = 1.0986, values 10 and 20. The scores are 0 and 1.0986, their exponentials
# 1 and 3, the weights 1/4 and 3/4. So the result is 10/4 + 60/4 = 17.5. If the second token is masked, the result is 10.
#
# Scores can be large. e to the power of 1,000 overflows a float. `torch.softmax` avoids this: it first
# subtracts the largest score. If you write your own softmax, do the same.
# %%
import torch

from exercises.grading import check, hint


# %% tags=["answer"]
def one_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention of one head: q [N, d], k and v [M, d], mask [N, M] (True: may attend; at least one key per query) -> [N, d]."""
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
# `tales` has 6 layers of 4 heads. In the small engine that you build in this course (`lab mine` runs it), your function now computes
# every head for every token. The course's large engine computes all heads of a layer in one call, which saves the start of many
# small operations. With 4 heads the gain is small here, because the rest of a step takes much longer. On a GPU it is large, because
# starting such a small operation takes longer than the operation itself.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p2e2_one_head", one_head)
