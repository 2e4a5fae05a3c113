# %% [markdown]
# # Debugging lab 4b: a temperature from nowhere
#
# **The symptom.** The operator of a CPU server switches speculative decoding on. Greedy answers stay the same, word for word. Sampled
# answers turn into garbage. Without drafts the same request with the same seed gets a good answer.
#
# This is a real bug of vLLM: issue 55005 (https://github.com/vllm-project/vllm/issues/55005, September 2026). A proposed fix is pull
# request 55006. Both were open in November 2026, and vLLM 0.32 has the bug. Below is the function with the bug, shortened.
#
# What you need to know:
#
# - Each request has its own temperature. In an ordinary step a request has one row of logits, and its row is divided by its temperature.
#   A step that verifies `k` drafts of a request has several rows for it. So the temperatures, one per **request**, must become one per
#   **row**. `expand_batch_to_tokens` does that. `cu_num_tokens` gives the end of each request's rows (cu: cumulative):
#
#       x = [a, b, c]    cu_num_tokens = [2, 5, 6]    ->    [a, a, b, b, b, c]
#
# - A greedy request has temperature 0, and a division by 0 must not happen. So a value `replace_from` becomes `replace_to`: here 0
#   becomes 1. The same function expands `top_p` and `top_k`, the latter as integers. With `replace_from = replace_to = 0` no value is
#   replaced.
# - On a GPU a Triton kernel does the work. On a CPU a kernel in C++ replaces it, which supports only `int64`. `expand_kernel` below
#   does the same as that kernel. So its caller passes `.long()` of every argument.
# - `tensor.long()` is the tensor itself if its dtype is `int64`. Otherwise it is a **new** tensor with the numbers truncated to
#   integers.
# - Newly allocated memory is not empty: it holds old data. `used_memory(n, dtype)` replaces `x.new_empty(n)`; its
#   content is the same in every run.
#
# **Your task** has two parts.
#
# 1. A colleague says: "The kernel fills a copy. So let us write the copy back into `expanded_x`." Apply that repair to
#    `x = [0.8, 0.0, 2.7]`, `cu_num_tokens = [2, 5, 6]`, with 0 replaced by 1. Which six temperatures result? Put them into `colleague`, a
#    list.
# 2. The answer cell holds `expand_batch_to_tokens` with the bug. Repair it: right values, in the dtype of `x`. You need not use the
#    kernel.
#
# First look at the symptom.
# %%
import torch

from exercises.grading import check, hint
from exercises.phase4.temperature_lab import expand_kernel, show_symptom, used_memory

show_symptom()


# %% tags=["answer"]
def expand_batch_to_tokens(x, cu_num_tokens, replace_from=0, replace_to=0):
    """Expand one value per request, [batch_size], to one value per row, [num_tokens]."""
    # BEGIN SOLUTION
    # STUB: expanded_x = used_memory(int(cu_num_tokens[-1]), x.dtype)
    # STUB: expand_kernel(expanded_x.long(), x.long(), cu_num_tokens.long(), replace_from, replace_to)
    # STUB: return expanded_x
    num_tokens = torch.diff(cu_num_tokens, prepend=torch.zeros_like(cu_num_tokens[:1]))
    values = torch.where(x == replace_from, replace_to, x).to(x.dtype)
    return values.repeat_interleave(num_tokens)
    # END SOLUTION


colleague = ...  # a list of six temperatures
# BEGIN SOLUTION
colleague = [1, 1, 1, 1, 1, 2]
# END SOLUTION


# %% tags=["check"]
check("p4d2_temperature_from_nowhere", expand_batch_to_tokens, colleague)

# %% [markdown]
# ## Into the engine
#
# The cell serves the same requests with your repair. Each has a seed: with drafts or without, the words must be the same.
#
# `torch.use_deterministic_algorithms(True)` helps to find such a bug: torch then fills all newly allocated memory with NaN, and every
# result that uses it becomes NaN too. The bug shows at once, in every run.

# %% tags=["engine"]
from exercises.phase4.temperature_lab import repair_in_the_engine

repair_in_the_engine(expand_batch_to_tokens, colleague)
