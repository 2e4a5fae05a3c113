# %% [markdown]
# # 3.6 Attention over scattered blocks
#
# A new token brings a query `q`. Its output is a mixture of the values of all tokens so far:
#
#     score[t] = q . k[t] / sqrt(head_dim)
#     weight[t] = exp(score[t]) / sum of all exp(score)          this is softmax
#     out = sum of weight[t] * v[t]
#
# The keys and values lie in blocks, anywhere. Copying them together first would take longer than the attention itself. So walk
# the block table, and add up as you go. There are two difficulties.
#
# **exp(1000) is more than any number a machine knows.** The remedy: subtract the largest score from all of them. The weights stay
# the same, since it cancels out.
#
# **On the way the largest score is not known.** The **online softmax** takes the largest one *so far*. Keep three things: `largest`, the
# sum of weights `total`, the weighted values `acc`. When a larger score turns up, what is in `total` and `acc` was measured
# against the smaller one. Multiply both by `exp(old largest - new largest)`, and go on.
#
# By hand, with scores 1 and 3 and values 10 and 20 (head_dim 1):
#
#     after the first     largest 1    total 1                    acc 10
#     the second is 3     both times exp(1 - 3) = 0.135: 0.135    1.353
#     add it, weight 1    largest 3    total 1.135                acc 21.353
#     at the end          21.353 / 1.135 = 18.81
#
# Write `paged_attention` for one query of one head. Take a block at a time (`k_cache[physical]` is a tensor `[block_size, head_dim]`), or
# a token at a time. Keep nothing that grows with the text: neither keys copied together nor all scores. (The check notices long
# tensors; a long Python list it cannot see.) The last block may be partly filled; behind `context_len` lies what another request left there. Do not even
# read it. The course's version in plain loops is `paged_attention_loops` in `phase3_paged_attention/paging/paged_attention.py`.
# %%
import math

import torch
from torch import Tensor

from exercises.grading import check, hint


# %% tags=["answer"]
def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: list[int], context_len: int
) -> Tensor:
    """Attention of one query over a request's blocks.

    q: [head_dim]. k_cache, v_cache: [num_blocks, block_size, head_dim].
    block_table: physical block of each logical block. context_len: tokens that the query sees.
    Returns [head_dim].
    """
    # BEGIN SOLUTION
    block_size, head_dim = k_cache.shape[1:]
    largest, total, acc = -math.inf, 0.0, torch.zeros(head_dim)
    for logical in range(math.ceil(context_len / block_size)):
        physical = block_table[logical]
        n = min(block_size, context_len - logical * block_size)
        scores = k_cache[physical, :n] @ q / math.sqrt(head_dim)
        new = max(largest, scores.max().item())
        shrink = math.exp(largest - new)
        weights = torch.exp(scores - new)
        total = total * shrink + weights.sum()
        acc = acc * shrink + weights @ v_cache[physical, :n]
        largest = new
    return acc / total
    # END SOLUTION


# %% tags=["check"]
check("p3e6_paged_attention", paged_attention)
# %% [markdown]
# ## Into the engine
#
# In the small engine that you build in this course (`lab mine` runs it) every decode step of every layer and head now goes
# through your loop. It will be slow: Python starts each small operation anew. The words are the same. Phase 5 brings the same loop to a GPU.
# %% tags=["engine"]
from exercises.phase3.into_engine import attention_in_the_engine

attention_in_the_engine(paged_attention)
