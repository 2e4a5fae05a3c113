# %% [markdown]
# # 4.3 Chunked prefill
#
# A step takes as long as its tokens, and all its users wait until its end. So a prompt of 2,000 tokens in one step is a long
# pause for all of them. **Chunked prefill** computes it in pieces. How large is the next piece?
#
# Three limits, in this order:
#
# 1. No more than the request lags: `num_tokens - num_computed_tokens`.
# 2. No more than `threshold`, while there are other requests. If it is `alone`, the threshold does not count. A
#    threshold of 0 means: there is none. (In vLLM this is the option `long_prefill_token_threshold`. That it spares a lone request
#    is new there, since https://github.com/vllm-project/vllm/pull/57951 of September 2026; older versions cut a lone request too.)
# 3. No more than the budget. If what is left after 1 and 2 is over the budget, it is cut down to the budget. But where the
#    budget may not cut (`chunked` is False), the request has to wait for another step: 0 tokens now.
#
# And the queue: `admit` gives pieces to those that wait, from its head. Each piece is taken off the budget. A request that gets
# 0 tokens stops it. **None jumps the queue**: a short prompt that would fit still waits behind the long one, or else the
# long one could wait for ever.
#
# By hand: Lea lags 400, Tom 3. Budget 64, threshold 32: Lea 32, Tom 3. Without a threshold: Lea 64, and nothing is left for
# Tom. Without a threshold and with `chunked` False: 400 is over 64, so none, this time. With a threshold of 32 and `chunked`
# False: Lea 32 and Tom 3 again, since 32 is not over the budget.

# %%
from exercises.grading import check, hint
from exercises.phase4.small_requests import SmallRequest

lea, tom = SmallRequest("Lea", 400), SmallRequest("Tom", 3)


# %% tags=["answer"]
def tokens_now(request, budget: int, threshold: int, alone: bool, chunked: bool) -> int:
    """How many tokens this request computes in this step; 0: it has to wait."""
    # BEGIN SOLUTION
    n = request.num_tokens - request.num_computed_tokens
    if threshold and not alone:
        n = min(n, threshold)
    if n > budget and not chunked:
        return 0
    return min(n, budget)
    # END SOLUTION


def admit(waiting: list, budget: int, threshold: int, alone: bool, chunked: bool) -> list[tuple]:
    """[(request, tokens), ...] for those who are admitted, from the head of the queue."""
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
# Three short prompts and three long ones come at once to the small engine that you build in this course (`lab mine` runs it). Your
# `tokens_now` cuts every piece; in place of `admit` the engine has `step` of 4.2. First a request may take all of the budget, then
# only 16 tokens a step. Look at the largest step: that is what all others have to sit through.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

large = {"num_blocks": 100, "max_num_batched_tokens": 512}
for threshold in (0, 16):
    print(f"--- {f'threshold {threshold}' if threshold else 'no threshold'}")
    parts = {"tokens_now": tokens_now}
    in_your_engine("p4e3_chunks", tokens_now, admit, parts=parts, threshold=threshold, **large)
