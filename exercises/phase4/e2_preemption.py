# %% [markdown]
# # 4.2 Somebody has to leave
#
# Answers grow, and nobody knows beforehand how long they get. So the moment comes in which a running request needs one more
# block and none is free. Then somebody is **preempted**: it gives back its blocks, and is computed again later.
#
# - **Who?** The last one that came: the end of `running`. Those who came first are nearer to their end. If that does not free
#   enough, the next to last follows, and so on. It may come to the request itself that needs the block: then nobody is left
#   behind it, and the turn of those who run is over.
# - **Where to?** To the *head* of `waiting`. It was admitted before all who stand there.
# - **What of its work?** `num_computed_tokens = 0`: keys and values are gone, prompt and answer are computed again (unless prefix
#   caching still has them).
# - **And the others?** In a step in which somebody was preempted **nobody is admitted**: do not even ask for blocks for those
#   who wait. Otherwise a small request takes just the blocks that were made free, and the game begins anew.
# - Whoever waits is admitted only if *all* its tokens would fit: `must_fit=request.num_tokens`. If it does not fit, admission
#   stops.
# - And **how much room?** Whoever computes `n` tokens in this step needs room for its first `num_computed_tokens + n` tokens,
#   and gets blocks for no more than that.
#
# Who computes how many tokens is as in 4.1: those who run first, in their order; then those who wait, from the head, while
# there are a seat and budget. Each takes what it lags, or what is left of the budget if that is less. Nobody is listed with 0 tokens.
#
# By hand: blocks of 4 tokens, 4 blocks, all taken. Ann has 8 tokens in two blocks and needs room for a ninth, Ben holds the
# other two, Cal waits. Ben leaves, Ann gets her block and computes 1. Then `running` is `[Ann]`, `waiting` is `[Ben, Cal]`,
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
# back. `num_computed_tokens` of those who compute stays as it is; the engine moves it on after the step.

# %%
from collections import deque

from exercises.grading import check, hint
from exercises.phase4.visitors import Pool, Visitor

# The example above, to try your step on: step(running, waiting, 16, 4, pool)
pool = Pool(num_blocks=4, block_size=4)
ann, ben, cal = Visitor("Ann", 9, 8), Visitor("Ben", 8, 7), Visitor("Cal", 3)
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
# Stuck? Run `hint("p4e2_preemption")`, and again after your next try.
#
# ## Into the engine
#
# The same four prompts in a cache that is too small for all of them. Somebody has to leave again and again, and no word
# of any answer changes.

# %% tags=["engine"]
from exercises.phase4.into_engine import preemption_in_the_engine

preemption_in_the_engine(step)
