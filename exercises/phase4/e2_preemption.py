# %% [markdown]
# # 4.2 Preemption
#
# Answers grow, and the scheduler does not know their final length. At some step a running request needs one more block and no
# block is free. Then the scheduler **preempts** a request: it frees the request's blocks, and computes the request again later.
#
# - **Which request?** The last of `running`, which was admitted last. Earlier requests are nearer to their end. If that does not
#   free enough blocks, preempt the next to last, and so on. The last candidate is the request itself that needs the block: then
#   no running request is left behind it, and the loop over `running` ends.
# - **Where does it go?** To the *head* of `waiting`: it was admitted before all requests that wait.
# - **What happens to its tokens?** Set `num_computed_tokens = 0`: its keys and values are lost, so prompt and answer are computed
#   again (unless the prefix cache still holds them).
# - **What happens to waiting requests?** In a step with a preemption **no request is admitted**: do not even call `allocate` for
#   waiting requests. Otherwise a small request would take the blocks that were just freed.
# - A waiting request is admitted only if *all* its tokens fit: `must_fit=request.num_tokens`. If it does not fit, admission
#   stops.
# - **How many blocks?** A request that computes `n` tokens in this step needs room for its first `num_computed_tokens + n` tokens,
#   and gets blocks for no more than that.
#
# The number of tokens per request is as in 4.1: running requests first, in their order; then waiting requests from the head, while
# fewer than `max_num_seqs` requests run and the budget is above 0. Each computes all tokens that it lacks, or the rest of the budget
# if that is less. No request is listed with 0 tokens. A waiting request may have computed tokens, with blocks, from a prefix hit.
#
# By hand: blocks of 4 tokens, 4 blocks, all in use. bob has 8 tokens in two blocks and needs room for a ninth, alice holds the
# other two blocks, carol waits. alice is preempted, bob gets a block and computes 1 token. Then `running` is `[bob]`, `waiting` is
# `[alice, carol]`, and carol is not admitted, although a block is free.
#
# Write the whole step. You get `pool`, with two methods:
#
#     pool.allocate(request, num_tokens, must_fit=0)   # room for its first num_tokens tokens
#     pool.free(request)                               # frees all its blocks
#
# `allocate` returns True, or False if there are too few blocks; then it has changed nothing.
#
# This time, move the requests: an admitted one from `waiting` (a `deque`) to the end of `running` (a list), a preempted one
# back. Leave the `num_computed_tokens` of the other requests unchanged; the engine updates it after the step.

# %%
from collections import deque

from exercises.grading import check, hint
from exercises.phase4.small_requests import Pool, SmallRequest

# The example above, to try your step: step(running, waiting, 16, 4, pool)
pool = Pool(num_blocks=4, block_size=4)
bob, alice, carol = SmallRequest("bob", 9, 8), SmallRequest("alice", 8, 7), SmallRequest("carol", 3)
running, waiting = [bob, alice], deque([carol])
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
# Six prompts arrive at once, and the cache is too small for all of them. In the small engine that you build in this course (`lab
# mine` runs it) your function decides every step. It preempts requests, and no answer changes.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p4e2_preemption", step, num_blocks=10, prefix_caching=False)
