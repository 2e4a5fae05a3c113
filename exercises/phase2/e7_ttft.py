# %% [markdown]
# # 2.7 How long until the first token?
#
# The **TTFT**, the time to first token, is how long a user looks at an empty screen. Without other requests it is the
# time of one step that computes the whole prompt. Four numbers give an estimate:
#
# - Each parameter takes part in one multiplication and one addition for **each token**: 2 operations.
# - Each parameter has to be fetched from memory **once per step**, whatever the number of tokens in the step.
#
# Fetching and computing overlap, so a step takes at least as long as the **slower** of the two. (The estimate leaves out
# attention and the KV cache, which are small for prompts of some hundred tokens.)
#
# By hand: 8 billion parameters, 2 bytes each, on a card that fetches 1,000 GB/s and computes 100 Tflop/s (10^14
# operations per second). Fetching takes 16 x 10^9 / 10^12 = 0.016 s. A token takes 1.6 x 10^10 operations, so 0.00016 s.
#
# - one token: max(0.016, 0.00016) = 0.016 s: memory is the limit, and the card computes for 1% of that time
# - 1,000 tokens: max(0.016, 0.16) = 0.16 s: arithmetic is the limit
# - 100 tokens: both take equally long. A shorter prompt takes the same time.
# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def step_seconds(
    num_tokens: int, num_parameters: float, bytes_per_parameter: float, bandwidth: float, rate: float
) -> float:
    """Compute the shortest possible time of a step of `num_tokens` tokens, in seconds.

    Args:
        bandwidth: bytes per second from memory. rate: operations per second.
    """
    # BEGIN SOLUTION
    computing = 2 * num_parameters * num_tokens / rate
    fetching = num_parameters * bytes_per_parameter / bandwidth
    return max(computing, fetching)
    # END SOLUTION


def tokens_for_free(bytes_per_parameter: float, bandwidth: float, rate: float) -> float:
    """Compute the number of tokens at which arithmetic takes as long as memory."""
    # BEGIN SOLUTION
    return bytes_per_parameter * rate / (2 * bandwidth)
    # END SOLUTION


# %% tags=["check"]
check("p2e7_ttft", step_seconds, tokens_for_free)
# %% [markdown]
# ## Beside the course's roofline
#
# `roofline.py` counts every matrix, the attention and the cache. Your two formulas leave out attention and cache, and
# count every parameter for every token. How large is the difference for a model of the shape of GPT-2?
# %% tags=["engine"]
from exercises.judging.engine_runs import passed, same_or_stop
from phase2_attention_kvcache.measuring.roofline import Ceilings, work_of_step
from phase2_attention_kvcache.model import GPT2_124M

passed("p2e7_ttft", step_seconds, tokens_for_free)
machine = Ceilings(bandwidth=20e9, rate=120e9)
in_use = (
    GPT2_124M.num_parameters - GPT2_124M.max_context * GPT2_124M.d_model
)  # a step reads only a few rows of the table of positions
print("tokens    yours, ms   course, ms")
for n in (1, 4, 16, 64, 256):
    yours = step_seconds(n, in_use, 4, machine.bandwidth, machine.rate)
    course = machine.seconds(work_of_step(GPT2_124M, n, 0, 4))
    print(f"{n:6}  {1e3 * yours:10.2f}  {1e3 * course:10.2f}")
    # The course scores the last token only, so it takes less time for long prompts.
    says = (
        f"at {n} tokens the difference is larger than the parts left out: {yours:.4g} s beside {course:.4g} s"
    )
    same_or_stop(0.95 < yours / course < 1.6, True, says=says)
print(
    f"On this machine memory is the limit up to {tokens_for_free(4, machine.bandwidth, machine.rate):.0f} tokens per step."
)
# %% [markdown]
# Up to 4 tokens fetching takes longer, and the two results agree. From 16 tokens on your result is larger: you multiply every token
# with every parameter. The course scores only the **last** token of a prompt against the 50,257 words, because the engine needs only
# its successor. That matrix is 31% of the parameters, more than the parts that you left out. So in the course's count memory is
# still the limit at 16 tokens.
