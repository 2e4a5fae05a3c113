# %% [markdown]
# # 5.5 A layer of Llama on two devices
#
# A model that is too large for one card is split. With **tensor parallelism** each card (each **rank**) holds a part of every matrix. All ranks compute
# from the same vectors `x`, and an **all-reduce** adds up their results. It is their only communication, and it costs time. A block can be cut so
# that two all-reduces suffice.
#
# The block, as one device computes it (`@` with a matrix [out, in] turned: `x @ w.T`):
#
#     h = rms_norm(x, attention_norm)
#     a = attend(h @ q.T, h @ k.T, h @ v.T)         in heads
#     x = x + a @ out.T + out_bias
#     h = rms_norm(x, mlp_norm)
#     x = x + (silu(h @ gate.T) * (h @ up.T)) @ down.T + down_bias
#
# (Most Llamas have no biases. This one has two, since they are a common mistake.)
#
# By hand, with d = 1, an MLP of two inner numbers, and the activation left out: `h` = 3, `up` = [2, 5], `down` = [10, 1], bias 4. One device:
# 10 x 6 + 1 x 15 + 4 = 79. Two ranks: rank 0 has up 2 and down 10, so it finds 60; rank 1 finds 15. The sum is 75, and the bias makes it
# 79. If each rank adds the bias *before* the sum, it is 83.
#
# Write two functions:
#
# - `cut` returns a rank's part of a block: 1/ranks of the numbers of each matrix. Norms and biases are small, so every rank may hold them whole.
# - `run` computes the block on one rank, with its part. All ranks must return the same result.
#
# Three questions:
#
# - **Heads.** The rows of `q`, `k` and `v` form heads of `head_dim` rows each. With 4 query heads and 2 KV
#   heads, query heads 0 and 1 share KV head 0, and 2 and 3 share KV head 1: they form a **group**. `attend` sees only the heads that you pass to it.
# - **Rows or columns?** The intermediate results of a rank must be exactly those that it needs for the next matrix.
# - **What is added up?** Each rank holds `x` whole, before and after the block.
# %%
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from exercises.grading import check, hint
from exercises.phase5.ranks import rms_norm


# %% tags=["answer"]
def cut(block: dict[str, Tensor], head_dim: int, rank: int, ranks: int) -> dict[str, Tensor]:
    """Return this rank's part of a block, under the same names.

    block: attention_norm [d], q [heads * head_dim, d], k, v [kv_heads * head_dim, d], out [d, heads * head_dim], out_bias [d],
    mlp_norm [d], gate, up [d_ff, d], down [d, d_ff], down_bias [d]. `ranks` divides heads, kv_heads and d_ff.
    """
    # BEGIN SOLUTION
    mine = dict(block)
    for name in ("q", "k", "v", "gate", "up"):
        mine[name] = block[name].chunk(ranks, dim=0)[rank]
    for name in ("out", "down"):
        mine[name] = block[name].chunk(ranks, dim=1)[rank]
    return mine
    # END SOLUTION


def run(x: Tensor, mine: dict[str, Tensor], head_dim: int, attend: Callable, all_reduce: Callable) -> Tensor:
    """Compute the block on one rank. x: [N, d], the same on all ranks. Returns [N, d], the same on all ranks.

    attend(q, k, v) -> [N, heads, head_dim], from q [N, heads, head_dim] and k, v [N, kv_heads, head_dim].
    all_reduce(part) -> the sum of all ranks' parts. It waits until every rank has called it.
    """
    # BEGIN SOLUTION
    h = rms_norm(x, mine["attention_norm"])
    q, k, v = ((h @ mine[name].T).view(len(x), -1, head_dim) for name in "qkv")
    found = attend(q, k, v).reshape(len(x), -1)
    x = x + all_reduce(found @ mine["out"].T) + mine["out_bias"]
    h = rms_norm(x, mine["mlp_norm"])
    inner = F.silu(h @ mine["gate"].T) * (h @ mine["up"].T)
    return x + all_reduce(inner @ mine["down"].T) + mine["down_bias"]
    # END SOLUTION


# %% tags=["check"]
check("p5e5_split_block", cut, run)
# %% [markdown]
# The course's version is `phase5_real_gpu/parallel/sharded_model.py`, with processes instead of threads: `python phase5_real_gpu/tensor_parallel.py`
# splits a whole model in this way, and its tokens are those of one device.
