# %% [markdown]
# # 4.4 Static against continuous
#
# Some users share a model. Each step writes one token for every user with a seat. All come at once, in this order, and
# we count steps: in which step does each of them get the complete answer?
#
# **Static batching** takes the first `seats` users and runs them until the *longest* answer of this batch is written. Then it
# hands out all answers of the batch, and takes the next `seats` users.
#
# **Continuous batching** hands an answer out as soon as it is written. The seat is taken in the very next step by the user
# who waits first.
#
# By hand: two seats, and the users want 5, 2 and 3 tokens. Static: the first batch takes 5 steps, the second 3:
# `[5, 5, 8]`. Continuous: the second user is done after step 2, the third has the seat in the steps 3, 4 and 5: `[5, 2, 5]`.

# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def static(lengths: list[int], seats: int) -> list[int]:
    """For each user the number of the step (from 1 on) after which the answer is handed out."""
    # BEGIN SOLUTION
    done, clock = [], 0
    for start in range(0, len(lengths), seats):
        batch = lengths[start : start + seats]
        clock += max(batch)
        done += [clock] * len(batch)
    return done
    # END SOLUTION


def continuous(lengths: list[int], seats: int) -> list[int]:
    """The same, if a seat is taken again as soon as it is free."""
    # BEGIN SOLUTION
    free_after = [0] * seats  # the step after which each seat is free
    done = []
    for length in lengths:
        seat = free_after.index(min(free_after))
        free_after[seat] += length
        done.append(free_after[seat])
    return done
    # END SOLUTION


# %% tags=["check"]
check("p4e4_static_continuous", static, continuous)

# %% [markdown]
# ## Into the engine
#
# Your two functions say beforehand in which step of the real engine each answer is there.

# %% tags=["engine"]
from exercises.phase4.into_engine import predict_the_engine

predict_the_engine(static, continuous)
