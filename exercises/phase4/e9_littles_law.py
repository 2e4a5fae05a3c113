# %% [markdown]
# # 4.9 Little's law and the saturation point
#
# Ten people a minute come into a shop, and each stays three minutes. So 30 are inside, on average. That is **Little's law**:
#
#     requests in the system = requests a second x seconds that each one stays
#
# It holds for any shop and any server, in whatever order they serve, as long as everybody who comes in goes out again.
#
# **First function.** A log says of each request when it came and when it was done. How many were in the system, on average over
# the run, from the first arrival to the last end? By hand, `[(2.0, 6.0), (3.0, 4.0), (5.0, 7.0)]`: they stay 4, 1 and 2 seconds,
# the run lasts 5. On average 7 / 5 = 1.4 requests.
#
# **Where is the saturation point?** A decode step for `n` requests takes `fixed + each * n` seconds: `fixed` for reading the weights, a
# little more for each request. An answer has `tokens` tokens, one a step. So a request stays `tokens` steps. And the law says how
# many run: `rate` x that stay. But the more run, the longer is a step. And the longer a step, the longer all stay.
#
# **Second function.** The smallest whole number `n` of requests that suffices: if `n` run, at least `rate` answers a second leave. The KV
# cache has room for `most` requests. If not even `most` suffice, more come than leave, and the queue grows for ever: 0.
#
# By hand, 0.5 requests a second, answers of 8 tokens, `fixed` 0.25 s, `each` 0.125 s, `most` 4. One running request: a step of
# 0.375 s, it stays 3 s, so 1/3 of a request a second leaves. Too few. Two: 0.5 s, 4 s, 2/4 = 0.5 a second. That suffices: 2.
#
# **Third function.** The **saturation point** (`knee`): the largest rate, in requests per second, that the server bears with `most` requests running.
# By hand, as above: four running requests, a step of 0.75 s, each stays 6 s, 4 / 6 = 0.667 requests a second.

# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def in_system(requests: list[tuple[float, float]]) -> float:
    """How many requests are in the system on average. Each is a pair: (arrival, end), in seconds."""
    # BEGIN SOLUTION
    begin = min(arrival for arrival, _ in requests)
    end = max(done for _, done in requests)
    return sum(done - arrival for arrival, done in requests) / (end - begin)
    # END SOLUTION


def running(rate: float, tokens: int, fixed: float, each: float, most: int) -> int:
    """The smallest number of running requests that serves `rate` a second; 0 if `most` are too few."""
    # BEGIN SOLUTION
    for n in range(1, most + 1):
        stay = tokens * (fixed + each * n)
        if n >= rate * stay:
            return n
    return 0
    # END SOLUTION


def knee(tokens: int, fixed: float, each: float, most: int) -> float:
    """The largest rate, requests a second, that `most` running requests serve."""
    # BEGIN SOLUTION
    return most / (tokens * (fixed + each * most))
    # END SOLUTION


# %% tags=["check"]
check("p4e9_littles_law", in_system, running, knee)

# %% [markdown]
# ## Into the engine
#
# The course's scheduler serves traffic in virtual time, below your saturation point and above it. Your figures stand beside what it did.
# Requests arrive at random there, so some wait below the saturation point, and many just below it.

# %% tags=["engine"]
from exercises.phase4.fleet_runs import load_the_engine

load_the_engine(in_system, running, knee)
