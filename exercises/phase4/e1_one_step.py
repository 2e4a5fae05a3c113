# %% [markdown]
# # 4.1 One step, one budget
#
# Before every step of the model, the scheduler decides how many tokens each request computes. A step computes at most `budget`
# tokens over all requests: the **token budget**. At most `max_num_seqs` requests run at a time.
#
# The scheduler knows no prefill phase and no decode phase. A request has `num_tokens` tokens, of which the model has computed
# `num_computed_tokens`. The difference is what it still has to compute: hundreds of tokens for a new prompt, one token for an answer.
#
# 1. **Running** requests come first, in their order. Each computes all tokens that it lacks, or the rest of the budget if that
#    is less.
# 2. Then **waiting** requests are admitted from the head of the queue, while fewer than `max_num_seqs` requests run and the budget
#    is above 0. No request is skipped. An admitted request computes all tokens that it lacks, or the rest of the budget.
# 3. No request is listed with 0 tokens.
#
# By hand, with a budget of 16 and `max_num_seqs` 4. Of bob's 10 tokens 9 are computed, of carol's 5 tokens 4. alice waits with 37
# tokens, dan with 3. bob computes 1, carol 1, alice 14, and the budget is used up: `[(bob, 1), (carol, 1), (alice, 14)]`. In the
# next step alice runs too.
#
# The course's version is `Scheduler.schedule` in `phase4_scheduler/engine/scheduler.py`. Exercise 4.2 adds memory.

# %%
from exercises.grading import check, hint
from exercises.phase4.small_requests import SmallRequest

bob, carol, alice, dan = (
    SmallRequest("bob", 10, 9),
    SmallRequest("carol", 5, 4),
    SmallRequest("alice", 37),
    SmallRequest("dan", 3),
)


# %% tags=["answer"]
def share_budget(running: list, waiting: list, budget: int, max_num_seqs: int) -> list[tuple]:
    """The tokens that each request computes in this step: [(request, tokens), ...], in the order of the decisions.

    Each request has num_tokens and num_computed_tokens. Change neither them nor the lists.
    """
    # BEGIN SOLUTION
    plan = []
    for request in running:
        n = min(request.num_tokens - request.num_computed_tokens, budget)
        if n > 0:
            plan.append((request, n))
            budget -= n
    room = max_num_seqs - len(running)
    for request in waiting:
        if room == 0 or budget == 0:
            break
        n = min(request.num_tokens - request.num_computed_tokens, budget)
        plan.append((request, n))
        budget -= n
        room -= 1
    return plan
    # END SOLUTION


# %% tags=["check"]
check("p4e1_one_step", share_budget)

# %% [markdown]
# ## Into the engine
#
# Six prompts arrive at once, and two more when these are answered. `max_num_seqs` is 3, a step computes 16 tokens, and memory
# suffices for all. In the small engine that you build in this course (`lab mine` runs it) your function decides every step.
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine
from exercises.phase4.small_requests import step_of_plan

in_your_engine(
    "p4e1_one_step",
    share_budget,
    parts={"step": step_of_plan(share_budget)},
    num_blocks=100,
    prefix_caching=False,
    max_num_seqs=3,
)
