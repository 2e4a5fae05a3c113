# %% [markdown]
# # 2.7 How long until the first token?
#
# The **TTFT**, the time to first token, is how long a user looks at an empty screen. While no other request is there it is the
# time of one step that computes the whole prompt. It can be estimated before anything runs, from four numbers:
#
# - Each parameter takes part in one multiplication and one addition for **each token**: 2 operations.
# - Each parameter has to be fetched from memory **once a step**, however many tokens the step has.
#
# Fetching and computing go on at the same time, so a step takes at least as long as the **slower** of the two. (Attention
# itself and the KV cache are left out. For prompts of some hundred tokens they are small.)
#
# By hand: 8 billion parameters, 2 bytes each, on a card that fetches 1,000 GB/s and computes 100 Tflop/s (10^14
# operations a second). Fetching takes 16 x 10^9 / 10^12 = 0.016 s. A token takes 1.6 x 10^10 operations, so 0.00016 s.
#
# - one token: max(0.016, 0.00016) = 0.016 s: memory is the limit, and the card computes for 1% of that time
# - 1,000 tokens: max(0.016, 0.16) = 0.16 s: arithmetic is the limit
# - at 100 tokens both take equally long. A shorter prompt is not answered any faster.
# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def step_seconds(
    num_tokens: int, num_parameters: float, bytes_per_parameter: float, bandwidth: float, rate: float
) -> float:
    """The shortest time in which a step of `num_tokens` tokens can be done.

    Args:
        bandwidth: bytes a second from memory. rate: operations a second.
    """
    # BEGIN SOLUTION
    computing = 2 * num_parameters * num_tokens / rate
    fetching = num_parameters * bytes_per_parameter / bandwidth
    return max(computing, fetching)
    # END SOLUTION


def tokens_for_free(bytes_per_parameter: float, bandwidth: float, rate: float) -> float:
    """How many tokens a step can have before arithmetic, not memory, decides its time."""
    # BEGIN SOLUTION
    return bytes_per_parameter * rate / (2 * bandwidth)
    # END SOLUTION


# %% tags=["check"]
check("p2e7_ttft", step_seconds, tokens_for_free)
# %% [markdown]
# ## Beside the course's roofline
#
# `roofline.py` counts every matrix, the attention and the cache. Your two lines leave attention and cache out, and
# count every parameter for every token. How far are they off, for a model of the shape of GPT-2?
# %% tags=["engine"]
from exercises.judging.engine_runs import passed, same_or_stop
from phase2_attention_kvcache.measuring.roofline import Ceilings, work_of_step
from phase2_attention_kvcache.model import GPT2_124M

passed("p2e7_ttft", step_seconds, tokens_for_free)
machine = Ceilings(bandwidth=20e9, rate=120e9)
in_use = (
    GPT2_124M.num_parameters - GPT2_124M.max_context * GPT2_124M.d_model
)  # of the positions one row is read
print("tokens    yours, ms   course, ms")
for n in (1, 4, 16, 64, 256):
    yours = step_seconds(n, in_use, 4, machine.bandwidth, machine.rate)
    course = machine.seconds(work_of_step(GPT2_124M, n, 0, 4))
    print(f"{n:6}  {1e3 * yours:10.2f}  {1e3 * course:10.2f}")
    # The course scores the last token only, so it gets by with less for long prompts.
    says = f"at {n} tokens you are further off than what was left out: {yours:.4g} s beside {course:.4g} s"
    same_or_stop(0.95 < yours / course < 1.6, True, says=says)
print(
    f"Free on this machine: the first {tokens_for_free(4, machine.bandwidth, machine.rate):.0f} tokens of a step."
)
# %% [markdown]
# Up to 4 tokens fetching decides, and the two agree. From 16 on yours is the larger one. You let every token go through every
# parameter. The course scores only the **last** token of a prompt against the 50,257 words, since it is not asked what follows the
# others. That matrix is 31% of the parameters, and more than what you left out. So for the course 16 tokens are still free.
