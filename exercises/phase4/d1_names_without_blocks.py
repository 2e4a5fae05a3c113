# %% [markdown]
# # Debugging lab 4: names without contents
#
# **The symptom.** A server with priorities and prefix caching. Memory is short now and then. Nearly always all is well. Once
# in a while a user gets an answer that has nothing to do with the question. The same prompt alone is answered well. With
# prefix caching off it never happens. With the policy `fcfs` (first come, first served) it never happens.
#
# This is a real bug of vLLM. In 0.32, `Scheduler._preempt_request` (vllm/v1/core/sched/scheduler.py) frees the victim's blocks with
# their hashes, also those that this step was to fill. A proposed fix, pull request 43569
# (https://github.com/vllm-project/vllm/pull/43569, May 2026), tells how it comes about, and issue 57580 (September 2026) has a case to
# reproduce. When we last looked both were open. Below is the place that it lives in, from our own scheduler, with the bug
# planted: what `Scheduler.preempt` does with a victim.
#
# What you need to know:
#
# - `BlockManager.allocate` gives blocks to a request for the step that is being decided. A block that will be *full* after this
#   step gets its block hash right then, the hash of its tokens and of all before them (its **name** below): "by the time a request
#   else may use it, this step has computed it". A request with the same tokens finds the block by its name, and does not compute
#   them.
# - `num_computed_tokens` says how many tokens were computed *before* this step. It moves on when the step is decided completely.
# - Under `priority` the request that has to make room (the **victim**) is the least urgent of all that run, wherever it stands. It
#   may have been **given its part in this very step** already. Its part is then taken back, and it runs no more; that code is
#   not shown here, and it is right.
# - `manager.free(table)` gives blocks back *with their names*, so that the victim can find them again when it returns.
# - `manager.uncache(table, first=i)` takes the names off blocks `i`, `i + 1`, ... of a table (counted from 0), as long as the
#   table still has them. `manager.block_size` is the number of tokens a block.
#
# **Your task** has two parts.
#
# 1. Blocks of 4 tokens. Tom has 10 tokens computed and was given 6 more in this step: four blocks, number 0 to 3. Now he has to
#    leave. Which of the four bear a name and do not hold what it says? Put their numbers into `lying`, a list.
# 2. The answer cell holds `preempt` with the bug in it. Repair it. Take away no name that is true: the victim wants to
#    find its computed blocks again. Only the line with `free` matters; the rest is bookkeeping.
#
# Look at the symptom first. The model is real; Tom has a long prompt and is the least urgent of three.
# %%
from exercises.grading import check, hint
from exercises.phase4.names_lab import RequestStatus, show_symptom

show_symptom()


# %% tags=["answer"]
def preempt(scheduler, victim):
    """Send a request, which runs no more, back to the queue, and take its blocks."""
    manager = scheduler.block_manager
    # BEGIN SOLUTION
    # STUB: manager.free(victim.block_table)
    manager.uncache(victim.block_table, first=victim.num_computed_tokens // manager.block_size)
    manager.free(victim.block_table)
    # END SOLUTION
    victim.num_computed_tokens = 0
    victim.status = RequestStatus.PREEMPTED
    victim.num_preemptions += 1
    scheduler.waiting.put_back(victim)


lying = ...  # a list of block numbers
# BEGIN SOLUTION
lying = [2, 3]
# END SOLUTION


# %% tags=["check"]
check("p4d1_names_without_blocks", preempt, lying)

# %% [markdown]
# ## Into the engine
#
# The same three prompts and the same memory, with your repair.

# %% tags=["engine"]
from exercises.phase4.names_lab import repair_in_the_engine

repair_in_the_engine(preempt, lying)
