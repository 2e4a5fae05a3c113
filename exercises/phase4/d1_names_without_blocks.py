# %% [markdown]
# # Debugging lab 4: names without contents
#
# **The symptom.** A server uses priorities and prefix caching, and its memory is sometimes short. Nearly all answers are right. But
# sometimes a user gets an answer that has nothing to do with the question. The same prompt alone gets a good answer. With
# prefix caching off it never happens. With the policy `fcfs` (first come, first served) it never happens.
#
# This is a real bug of vLLM. In 0.32, `Scheduler._preempt_request` (vllm/v1/core/sched/scheduler.py) frees the victim's blocks with
# their hashes, also the blocks that this step was to fill. A proposed fix, pull request 43569
# (https://github.com/vllm-project/vllm/pull/43569, May 2026), explains the cause, and issue 57580 (September 2026) reproduces it for
# the checkpoints of Mamba layers. Both were open in November 2026. Below is the course's own `Scheduler.preempt` with the bug planted.
#
# What you need to know:
#
# - `BlockManager.allocate` allocates blocks to a request for the step that is being scheduled. A block that will be *full* after this
#   step gets its block hash at once, because this step computes it before another request can use it. A request with the
#   same tokens finds the block by its hash, and does not compute them.
# - `num_computed_tokens` is the number of tokens that were computed *before* this step. It is updated when the step is scheduled
#   completely.
# - Under `priority`, the preempted request (the **victim**) is the least urgent running request, wherever it is in the list. It
#   may **already be scheduled in this same step**. Its part of the step is then cancelled; that code is
#   not shown here, and it is right.
# - `manager.free(table)` frees blocks *with their hashes*, so that the victim can find them when it runs again.
# - `manager.uncache(table, first=i)` removes the hashes of blocks `i`, `i + 1`, ... of a table (counted from 0). The table must still
#   hold the blocks. `manager.block_size` is the number of tokens per block.
#
# **Your task** has two parts.
#
# 1. Blocks have 4 tokens. alice has 10 computed tokens, and 6 more are scheduled in this step: four blocks, 0 to 3. Now it is
#    preempted. Which of the four blocks have a hash, but do not hold its tokens? Put their numbers into `lying`, a list.
# 2. The answer cell holds `preempt` with the bug. Repair it. Keep all valid hashes, so that the victim
#    finds its computed blocks again. Only the line with `free` matters; the other lines are bookkeeping.
#
# First look at the symptom. The model is real; alice has a long prompt and is the least urgent of three requests.
# %%
from exercises.grading import check, hint
from exercises.phase4.names_lab import RequestStatus, show_symptom

show_symptom()


# %% tags=["answer"]
def preempt(scheduler, victim):
    """Free the blocks of a preempted request, and put it back into the queue."""
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
# The cell serves the same three prompts with the same memory and your repair.

# %% tags=["engine"]
from exercises.phase4.names_lab import repair_in_the_engine

repair_in_the_engine(preempt, lying)
