# %% [markdown]
# # 5.2 Merging the splits of a context
#
# One request with a long context keeps few multiprocessors of a GPU busy: there is one program per KV head, and more than a hundred multiprocessors are
# idle. So the context is divided into **splits**, and each split gets its own program (**split KV**). A program computes the attention over its own tokens
# and stores two results:
#
#     out       the attention within the split: head_dim numbers, already divided by the split's sum of weights
#     log_sum   log( sum over the split's tokens of exp(score) ), one number: the logarithm of the split's weight
#
# The logarithm is stored because a score may be 1,000, and exp(1000) overflows a float.
#
# Attention is the sum over all tokens of exp(score) x value, divided by the sum of all exp(score). A split's sum of weights is
# exp(log_sum), and its share of the first sum is `out` x exp(log_sum).
#
# By hand, with head_dim 1: two splits, `out` 10 and 40, `log_sum` log 6 and log 2. Their weights are 6 and 2:
#
#     out      = (6 x 10 + 2 x 40) / (6 + 2) = 17.5
#     log_sum  = log(6 + 2) = 2.079
#
# Write `merge`. It returns both, so that merged splits can be merged again. Three traps:
#
# - `log_sum` may be 1,000 for all splits, or -1,000. Only their differences matter.
# - A short request has **empty splits**. The `out` of an empty split was never written and may be NaN. Its `log_sum` is -infinity (log 0).
# - All splits may be empty (a row of padding). Then `out` is zeros and `log_sum` is -infinity.
#
# The course's version is `merge_kernel` in `phase5_real_gpu/kernels/decode_kernel.py` (as in chapter 4, with powers of two instead of e).
# %%
import torch
from torch import Tensor

from exercises.grading import check, hint


# %% tags=["answer"]
def merge(outs: Tensor, log_sums: Tensor) -> tuple[Tensor, Tensor]:
    """Merge the attention of several splits.

    outs: [splits, head_dim], the attention within each split. log_sums: [splits].
    Returns (out [head_dim], log_sum, a tensor of a single number).
    """
    # BEGIN SOLUTION
    largest = log_sums.max()
    if largest == -torch.inf:
        return torch.zeros(outs.shape[1]), largest
    weights = torch.exp(log_sums - largest)  # 0 for an empty split
    outs = outs.where(weights[:, None] > 0, 0.0)  # 0 x NaN is NaN
    total = weights.sum()
    return weights @ outs / total, largest + total.log()
    # END SOLUTION


# %% tags=["check"]
check("p5e2_merge_splits", merge)
# %% [markdown]
# ## Into the engine
#
# The small engine that you build in this course (`lab mine` runs it) now divides every context into splits of 8 tokens, and your
# function merges them for every new token, layer and head. The last split of each context is empty.
# %% tags=["engine"]
from exercises.phase5.into_engine import merge_in_the_engine

merge_in_the_engine(merge)
