# %% [markdown]
# # 4.2 Preemption
#
# Answers grow, and how long they get is not known beforehand. So the moment comes in which a running request needs one more
# block and none is free. Then a request is **preempted**: it gives back its blocks, and is computed again later.
#
# - **Which?** The last one that came: the end of `running`. Those that came first are nearer to their end. If that does not free
#   enough, the next to last follows, and so on. It may come to the request itself that needs the block: then none is left
#   behind it, and the turn of `running` is over.
# - **Where to?** To the *head* of `waiting`. It was admitted before all that stand there.
# - **What of its work?** `num_computed_tokens = 0`: keys and values are gone, prompt and answer are computed again (unless prefix
#   caching still has them).
# - **And the others?** In a step with a preemption **no request is admitted**: do not even ask for blocks for those
#   that wait. Otherwise a small request takes just the blocks that were made free, and the game begins anew.
# - A waiting request is admitted only if *all* its tokens would fit: `must_fit=request.num_tokens`. If it does not fit, admission
#   stops.
# - And **how much room?** A request that computes `n` tokens in this step needs room for its first `num_computed_tokens + n` tokens,
#   and gets blocks for no more than that.
#
# How many tokens each computes is as in 4.1: those that run first, in their order; then those that wait, from the head, while
# there are a seat and budget. Each takes what it lags, or what is left of the budget if that is less. None is listed with 0 tokens.
# A waiting request may have computed tokens, with blocks: its prefix was found in the cache.
#
# By hand: blocks of 4 tokens, 4 blocks, all taken. Ann has 8 tokens in two blocks and needs room for a ninth, Ben holds the
# other two, Cal waits. Ben is preempted, Ann gets her block and computes 1. Then `running` is `[Ann]`, `waiting` is `[Ben, Cal]`,
# and Cal is not admitted, though a block is free.
#
# Write the whole step. You get `pool`, with two calls:
#
#     pool.allocate(request, num_tokens, must_fit=0)   # room for its first num_tokens tokens
#     pool.free(request)                               # gives back all it holds
#
# `allocate` says True; or False if there are too few blocks, and then nothing has changed.
#
# This time move the requests: an admitted one from `waiting` (a `deque`) to the end of `running` (a list), a preempted one
# back. `num_computed_tokens` of those that compute stays as it is; the engine moves it on after the step.

# %%
from collections import deque

from exercises.grading import check, hint
from exercises.phase4.small_requests import Pool, SmallRequest

# The example above, to try your step on: step(running, waiting, 16, 4, pool)
pool = Pool(num_blocks=4, block_size=4)
ann, ben, cal = SmallRequest("Ann", 9, 8), SmallRequest("Ben", 8, 7), SmallRequest("Cal", 3)
running, waiting = [ann, ben], deque([cal])
for request in running:
    pool.allocate(request, request.num_computed_tokens)


# %% tags=["answer"]
def step(running: list, waiting: deque, budget: int, max_num_seqs: int, pool) -> list[tuple]:
    """Decide a step: [(request, tokens), ...]. Moves requests between `running` and `waiting`."""
    # BEGIN SOLUTION
    plan, preempted, index = [], False, 0
    while index < len(running) and budget > 0:
        request = running[index]
        n = min(request.num_tokens - request.num_computed_tokens, budget)
        got_blocks = False
        while not got_blocks:
            got_blocks = pool.allocate(request, request.num_computed_tokens + n)
            if not got_blocks:
                victim = running.pop()
                pool.free(victim)
                victim.num_computed_tokens = 0
                waiting.appendleft(victim)
                preempted = True
                if victim is request:
                    break
        if got_blocks:
            plan.append((request, n))
            budget -= n
            index += 1
    while waiting and not preempted and budget > 0 and len(running) < max_num_seqs:
        request = waiting[0]
        n = min(request.num_tokens - request.num_computed_tokens, budget)
        if not pool.allocate(request, request.num_computed_tokens + n, must_fit=request.num_tokens):
            break
        running.append(waiting.popleft())
        plan.append((request, n))
        budget -= n
    return plan
    # END SOLUTION


# %% tags=["check"]
check("p4e2_preemption", step)

# %% [markdown]
# ## Into the engine
#
# Six prompts at once, in a cache that is too small for all of them. In the small engine that you build in this course (`lab mine`
# runs it) your function decides every step. Requests are preempted, and no word of any answer changes.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p4e2_preemption", step, num_blocks=10, prefix_caching=False)
