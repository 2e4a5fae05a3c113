# %% [markdown]
# # 4.3 Chunked prefill
#
# The time of a step grows with its tokens, and all its requests wait for its end. So a prompt of 2,000 tokens in one step is a long
# pause for all other requests. **Chunked prefill** computes the prompt in chunks. Three limits, in this order, give the size of the
# next chunk:
#
# 1. At most the tokens that the request still has to compute: `num_tokens - num_computed_tokens`.
# 2. At most `threshold`, while there are other requests. If the request is `alone`, the threshold does not apply. A
#    threshold of 0 means no threshold. (In vLLM this is the option `long_prefill_token_threshold`. The exception for a lone request
#    is new in https://github.com/vllm-project/vllm/pull/57951 of September 2026; older versions cut a lone request too.)
# 3. At most the budget. If the result of 1 and 2 is over the budget, it is cut to the budget. But if the
#    budget may not cut (`chunked` is False), the request waits for another step: 0 tokens now.
#
# `admit` goes through the queue from its head, gives each waiting request a chunk, and subtracts it from the budget. It stops at the first
# request that gets 0 tokens. **No request jumps the queue**: a short prompt that would fit still waits behind the long one, otherwise the
# long one could wait forever.
#
# By hand: alice has 37 tokens to compute, dan 3. Budget 16, threshold 8: alice 8, dan 3. Without a threshold: alice 16, and the budget
# is used up. Without a threshold and with `chunked` False: 37 is over 16, so both wait. With a threshold of 8 and `chunked`
# False: alice 8 and dan 3 again, since 8 is not over the budget.

# %%
from exercises.grading import check, hint
from exercises.phase4.small_requests import SmallRequest

alice, dan = SmallRequest("alice", 37), SmallRequest("dan", 3)


# %% tags=["answer"]
def tokens_now(request, budget: int, threshold: int, alone: bool, chunked: bool) -> int:
    """Compute the number of tokens of this request in this step; 0: it has to wait."""
    # BEGIN SOLUTION
    n = request.num_tokens - request.num_computed_tokens
    if threshold and not alone:
        n = min(n, threshold)
    if n > budget and not chunked:
        return 0
    return min(n, budget)
    # END SOLUTION


def admit(waiting: list, budget: int, threshold: int, alone: bool, chunked: bool) -> list[tuple]:
    """Return [(request, tokens), ...] for the admitted requests, from the head of the queue."""
    # BEGIN SOLUTION
    plan = []
    for request in waiting:
        n = tokens_now(request, budget, threshold, alone, chunked)
        if n == 0:
            break
        plan.append((request, n))
        budget -= n
    return plan
    # END SOLUTION


# %% tags=["check"]
check("p4e3_chunks", tokens_now, admit)

# %% [markdown]
# ## Into the engine
#
# Three short prompts and three long ones arrive at once at the small engine that you build in this course (`lab mine` runs it). Your
# `tokens_now` sets the size of every chunk; in place of `admit` the engine has `step` of 4.2. First a request may take the whole budget,
# then only 16 tokens per step. Look at the largest step: all other requests wait for its end.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

large = {"num_blocks": 100, "max_num_batched_tokens": 512}
for threshold in (0, 16):
    print(f"--- {f'threshold {threshold}' if threshold else 'no threshold'}")
    parts = {"tokens_now": tokens_now}
    in_your_engine("p4e3_chunks", tokens_now, admit, parts=parts, threshold=threshold, **large)
