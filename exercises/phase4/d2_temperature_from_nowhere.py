# %% [markdown]
# # Debugging lab 4b: a temperature from nowhere
#
# **The symptom.** A server on CPUs. The operator switches speculative decoding on. Greedy answers are as before, word for word. Drawn
# answers turn into garbage. Without drafts the same request, with the same seed, is answered well.
#
# This is a real bug of vLLM: issue 55005 (https://github.com/vllm-project/vllm/issues/55005, September 2026). A proposed fix is pull
# request 55006. When we last looked both were open, and vLLM 0.32 has the bug. Below is the place that it lives in, shortened.
#
# What you need to know:
#
# - Each request has its own temperature. In an ordinary step a request has one row of logits, and its row is divided by its temperature.
#   A step that verifies `k` drafts of a request has several rows for it. So the temperatures, one a **request**, must become one a
#   **row**. `expand_batch_to_tokens` does that. `cu_num_tokens` tells where the rows of each request end (cu: cumulative, added up):
#
#       x = [a, b, c]    cu_num_tokens = [2, 5, 6]    ->    [a, a, b, b, b, c]
#
# - A greedy request has temperature 0, and nothing may be divided by 0. So a value `replace_from` becomes `replace_to`: here 0 becomes 1.
#   The same function expands `top_p` and `top_k`, the latter as whole numbers. With `replace_from = replace_to = 0` nothing is replaced.
# - On a GPU a Triton kernel does the work. On a CPU a kernel in C++ takes its place. It knows one kind of number: `int64`, whole
#   numbers of 64 bits. `expand_kernel` below does what it does. So its caller hands over `.long()` of everything.
# - `tensor.long()` is the tensor itself if it holds `int64`. Otherwise it is a **new** tensor: the same numbers, without what stands behind
#   the point.
# - Memory that a program is given is not empty. It holds what was there before. `used_memory(n, dtype)` stands for `x.new_empty(n)`; what
#   it holds is the same for everybody, so that you see what we saw.
#
# **Your task** has two parts.
#
# 1. A colleague says: "The kernel fills a copy. So let us write the copy back into `expanded_x`." Take that repair, `x = [0.8, 0.0, 2.7]`,
#    `cu_num_tokens = [2, 5, 6]`, and 0 replaced by 1. Which six temperatures come out? Put them into `colleague`, a list.
# 2. The answer cell holds `expand_batch_to_tokens` with the bug in it. Repair it: right values, in the kind of numbers that `x` has. You may
#    do without the kernel.
#
# Look at the symptom first.
# %%
import torch

from exercises.grading import check, hint
from exercises.phase4.temperature_lab import expand_kernel, show_symptom, used_memory

show_symptom()


# %% tags=["answer"]
def expand_batch_to_tokens(x, cu_num_tokens, replace_from=0, replace_to=0):
    """One value a request, [batch_size], to one value a row, [num_tokens]."""
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
# The same requests, with your repair. Each has a seed: with drafts or without, the words must be the same.
#
# How does one find such a bug? torch can fill all fresh memory with NaN, numbers that spoil whatever they touch:
# `torch.use_deterministic_algorithms(True)`. Then it shows at once, and every time.

# %% tags=["engine"]
from exercises.phase4.temperature_lab import repair_in_the_engine

repair_in_the_engine(expand_batch_to_tokens, colleague)
