# %% [markdown]
# # 3.6 Attention over scattered blocks
#
# A new token has a query `q`. Its output is a weighted sum of the values of all tokens so far:
#
#     score[t] = q . k[t] / sqrt(head_dim)
#     weight[t] = exp(score[t]) / sum of all exp(score)          this is softmax
#     out = sum of weight[t] * v[t]
#
# The keys and values are in blocks, anywhere in memory. Gathering them first would take longer than the attention itself. So go
# through the block table, and add up block by block. There are two difficulties.
#
# **exp(1000) overflows a float.** The remedy: subtract the largest score from all scores. The weights stay the same, because the
# factor cancels out.
#
# **In the middle of the loop the largest score is unknown.** The **online softmax** uses the largest score *so far*. Keep three
# values: `largest`, the sum of weights `total`, and the weighted sum of values `acc`. When a larger score appears, `total` and `acc`
# refer to the old maximum. Multiply both by `exp(old largest - new largest)`, and continue.
#
# By hand, with scores 1 and 3 and values 10 and 20 (head_dim 1):
#
#     after the first     largest 1    total 1                    acc 10
#     the second is 3     both times exp(1 - 3) = 0.135: 0.135    1.353
#     add it, weight 1    largest 3    total 1.135                acc 21.353
#     at the end          21.353 / 1.135 = 18.81
#
# Write `paged_attention` for one query of one head. Take a block at a time (`k_cache[physical]` is a tensor `[block_size, head_dim]`), or
# a token at a time. Keep nothing that grows with the text: neither gathered keys nor all scores. (The check detects long
# tensors, but no long Python list.) The last block may be partly filled; the places behind `context_len` hold data of another request. Do
# not read them. The course's version in plain loops is `paged_attention_loops` in `phase3_paged_attention/paging/paged_attention.py`.
# %%
import math

import torch
from torch import Tensor

from exercises.grading import check, hint


# %% tags=["answer"]
def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: list[int], context_len: int
) -> Tensor:
    """Compute attention of one query over a request's blocks.

    q: [head_dim]. k_cache, v_cache: [num_blocks, block_size, head_dim].
    block_table: physical block of each logical block. context_len: tokens that the query attends to.
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
# In the small engine that you build in this course (`lab mine` runs it) your loop now computes every decode step of every layer and
# head. It is slow, because Python starts each small operation separately. The words are the same. Phase 5 runs the same loop on a GPU.
# %% tags=["engine"]
from exercises.phase3.into_engine import attention_in_the_engine

attention_in_the_engine(paged_attention)
