# %% [markdown]
# # 4.9 Little's law and the saturation point
#
# If ten requests per second arrive at a server and each stays three seconds, 30 requests are in the server on average. That is
# **Little's law**:
#
#     requests in the system = requests per second x seconds that each request stays
#
# It holds for any server and any order of service, as long as each request that enters also leaves.
#
# **First function.** A log holds the arrival and the end of each request. Compute the average number of requests in the system over
# the run, from the first arrival to the last end. By hand, `[(2.0, 6.0), (3.0, 4.0), (5.0, 7.0)]`: the requests stay 4, 1 and 2 seconds,
# and the run lasts 5 seconds. The average is 7 / 5 = 1.4 requests.
#
# **The saturation point.** A decode step for `n` requests takes `fixed + each * n` seconds: `fixed` for reading the weights, and
# `each` per request. An answer has `tokens` tokens, one per step, so a request stays `tokens` steps. By Little's law the number of
# running requests is `rate` times that stay. But more running requests make a step longer, and longer steps make all requests stay longer.
#
# **Second function.** Find the smallest whole number `n` of requests that suffices: with `n` running requests, at least `rate` answers per
# second are completed. The KV cache has room for `most` requests. If `most` requests do not suffice, the queue grows without bound:
# return 0.
#
# By hand, 0.5 requests per second, answers of 8 tokens, `fixed` 0.25 s, `each` 0.125 s, `most` 4. With one running request a step takes
# 0.375 s and the request stays 3 s, so 1/3 of an answer per second is completed. That is too little. With two: 0.5 s, 4 s, 2/4 = 0.5 per
# second. That suffices: 2.
#
# **Third function.** The **saturation point** (`highest_rate`) is the largest rate, in requests per second, that the server can serve with
# `most` running requests. By hand, as above: four running requests, a step of 0.75 s, a stay of 6 s, 4 / 6 = 0.667 requests per second.

# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def in_system(requests: list[tuple[float, float]]) -> float:
    """Compute the average number of requests in the system. Each is a pair: (arrival, end), in seconds."""
    # BEGIN SOLUTION
    begin = min(arrival for arrival, _ in requests)
    end = max(done for _, done in requests)
    return sum(done - arrival for arrival, done in requests) / (end - begin)
    # END SOLUTION


def running(rate: float, tokens: int, fixed: float, each: float, most: int) -> int:
    """Find the smallest number of running requests that serves `rate` per second; 0 if `most` are too few."""
    # BEGIN SOLUTION
    for n in range(1, most + 1):
        stay = tokens * (fixed + each * n)
        if n >= rate * stay:
            return n
    return 0
    # END SOLUTION


def highest_rate(tokens: int, fixed: float, each: float, most: int) -> float:
    """Compute the largest rate, in requests per second, that `most` running requests serve."""
    # BEGIN SOLUTION
    return most / (tokens * (fixed + each * most))
    # END SOLUTION


# %% tags=["check"]
check("p4e9_littles_law", in_system, running, highest_rate)

# %% [markdown]
# ## Into the engine
#
# The course's scheduler serves traffic in virtual time, below and above your saturation point. The table compares your figures with the
# simulation. Requests arrive at random times, so some wait even below the saturation point, and many wait just below it.

# %% tags=["engine"]
from exercises.phase4.fleet_runs import load_the_engine

load_the_engine(in_system, running, highest_rate)
