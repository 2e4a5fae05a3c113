# %% [markdown]
# # 2.3 Grouped-query attention
#
# A layer has several heads. Each head is a separate attention with its own queries, keys and values. But the keys and values of every
# head take memory for each token. In **grouped-query attention** several query heads share one KV head (a head of keys and values).
# Llama-3 8B has 32 query heads and 8 KV heads, so its cache has a quarter of the size.
#
# Neighbouring query heads share a KV head. By hand, for 4 query heads and 2 KV heads: heads 0 and 1 use KV head 0, heads 2 and
# 3 use KV head 1. (The weights in a model's file are made for this order. In another order the same file gives nonsense.)
#
# Write attention for all heads. The tokens of `q` are the last N of the M tokens, so each attends to itself and to all tokens before
# it. `one_head` below computes one head.
# %%
import torch

from exercises.grading import check, hint


def one_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of one head: q [N, d], k and v [M, d] -> [N, d]. The queries are the last N of M tokens."""
    n, m = len(q), len(k)
    future = torch.ones(n, m, dtype=torch.bool).triu(diagonal=m - n + 1)
    scores = (q @ k.T / q.shape[-1] ** 0.5).masked_fill(future, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


# %% tags=["answer"]
def grouped_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute attention in which several query heads share a KV head.

    Args:
        q: [N, num_heads, d]. k, v: [M, num_kv_heads, d]; num_heads is a multiple of num_kv_heads.

    Returns:
        [N, num_heads, d].
    """
    # BEGIN SOLUTION
    num_heads, num_kv_heads = q.shape[1], k.shape[1]
    group = num_heads // num_kv_heads
    outputs = [one_head(q[:, h], k[:, h // group], v[:, h // group]) for h in range(num_heads)]
    return torch.stack(outputs, dim=1)
    # END SOLUTION


# %% tags=["check"]
check("p2e3_grouped", grouped_attention)
# %% [markdown]
# ## Into the engine
#
# `tales` is a GPT-2, whose query heads share no KV heads. So this cell makes a small Llama with random weights: 8 query heads, 2 KV
# heads. It writes noise, but with your attention it must write the same noise. The course computes all heads in one call of PyTorch.
# In a model as small as this one most of the time goes into starting operations, so a loop over heads is slower.
# %% tags=["engine"]
from exercises.judging.engine_runs import passed, same_or_stop, speed, timed
from exercises.phase2.in_engine import YourAttention, small_llama, tokens_of

passed("p2e3_grouped", grouped_attention)
model, prompts = small_llama(), [list(range(20, 45)), [7, 8, 9]]
config = model.config
course, course_seconds = timed(lambda: tokens_of(model, prompts))
mine, my_seconds = timed(lambda: tokens_of(model, prompts, YourAttention(config, grouped_attention)))
same_or_stop(mine, course, says="with your attention the model writes other tokens")
print(f"{config.num_heads} query heads, {config.num_kv_heads} KV heads, and the course's tokens:")
print(mine[0], mine[1], sep="\n")
print(speed(my_seconds, course_seconds))
