# %% [markdown]
# # 4.1 One step, one budget
#
# Before every step of the model the scheduler decides which request computes how many tokens. A step takes at most `budget`
# tokens, over all requests. That is the **token budget**. At most `max_num_seqs` requests run at a time: the **seats**.
#
# There is no prefill phase and no decode phase. A request has `num_tokens` tokens, of which `num_computed_tokens` went
# through the model. What is missing, it may catch up with. A new prompt lags by hundreds, an answer in the making by one.
#
# 1. Requests that **run** go first, in their order. Each takes what it lags, or what is left of the budget if that is less.
# 2. Then requests that **wait** are admitted from the head of the queue, while there are a seat and budget. None is skipped.
#    An admitted request takes what it lags, or the rest of the budget.
# 3. No request is listed with 0 tokens.
#
# By hand, with a budget of 16 and 4 seats. Ann has 9 of her 10 tokens computed, Ben 4 of 5; Lea waits with 40, Tom with 3.
# Ann 1, Ben 1, Lea 14; nothing is left for Tom: `[(Ann, 1), (Ben, 1), (Lea, 14)]`. In the next step Lea is one of those
# that run.
#
# The course's own is `Scheduler.schedule` in `phase4_scheduler/engine/scheduler.py`. Memory comes in 4.2.

# %%
from exercises.grading import check, hint
from exercises.phase4.small_requests import SmallRequest

ann, ben, lea, tom = (
    SmallRequest("Ann", 10, 9),
    SmallRequest("Ben", 5, 4),
    SmallRequest("Lea", 40),
    SmallRequest("Tom", 3),
)


# %% tags=["answer"]
def share_budget(running: list, waiting: list, budget: int, max_num_seqs: int) -> list[tuple]:
    """Who computes how many tokens in this step: [(request, tokens), ...], in the order of the decisions.

    Each request has num_tokens and num_computed_tokens. Change neither them nor the lists.
    """
    # BEGIN SOLUTION
    plan = []
    for request in running:
        n = min(request.num_tokens - request.num_computed_tokens, budget)
        if n > 0:
            plan.append((request, n))
            budget -= n
    seats = max_num_seqs - len(running)
    for request in waiting:
        if seats == 0 or budget == 0:
            break
        n = min(request.num_tokens - request.num_computed_tokens, budget)
        plan.append((request, n))
        budget -= n
        seats -= 1
    return plan
    # END SOLUTION


# %% tags=["check"]
check("p4e1_one_step", share_budget)

# %% [markdown]
# ## Into the engine
#
# Six prompts come at once, and two more when these are answered. There are three seats, 16 tokens a step, and memory for all.
# The model is real, and in the small engine that you build in this course (`lab mine` runs it) your function decides every step.
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
