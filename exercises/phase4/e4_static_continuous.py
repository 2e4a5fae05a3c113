# %% [markdown]
# # 4.4 Static against continuous
#
# Several requests share a model. A step writes one token for each running request, and at most `max_num_seqs` requests run
# at a time. All requests arrive at the same time, in the order of the list. Count the steps: after which step is each answer
# returned?
#
# **Static batching** takes the first `max_num_seqs` requests and runs them until the *longest* answer of this batch is complete.
# Then it returns all answers of the batch, and takes the next `max_num_seqs` requests.
#
# **Continuous batching** returns an answer as soon as it is complete. In the very next step the first waiting request takes its
# place.
#
# By hand: `max_num_seqs` is 2, and the answers have 5, 2 and 3 tokens. Static: the first batch takes 5 steps, the second 3:
# `[5, 5, 8]`. Continuous: the second answer is complete after step 2, and the third request runs in steps 3, 4 and 5: `[5, 2, 5]`.

# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def static(lengths: list[int], max_num_seqs: int) -> list[int]:
    """For each request the number of the step, from 1 on, after which its answer is returned."""
    # BEGIN SOLUTION
    done, clock = [], 0
    for start in range(0, len(lengths), max_num_seqs):
        batch = lengths[start : start + max_num_seqs]
        clock += max(batch)
        done += [clock] * len(batch)
    return done
    # END SOLUTION


def continuous(lengths: list[int], max_num_seqs: int) -> list[int]:
    """The same, if a waiting request starts in the step after an answer is complete."""
    # BEGIN SOLUTION
    free_after = [0] * max_num_seqs  # for each place in the batch, the step after which it is free
    done = []
    for length in lengths:
        place = free_after.index(min(free_after))
        free_after[place] += length
        done.append(free_after[place])
    return done
    # END SOLUTION


# %% tags=["check"]
check("p4e4_static_continuous", static, continuous)

# %% [markdown]
# ## Into the engine
#
# Your two functions predict the step of the real engine after which each answer is returned.

# %% tags=["engine"]
from exercises.phase4.into_engine import predict_the_engine

predict_the_engine(static, continuous)
