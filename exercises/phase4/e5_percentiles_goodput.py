# %% [markdown]
# # 4.5 Percentiles and goodput
#
# A mean hides the slow requests. The 95th **percentile**, p95, is the value that 95 of 100 values do not exceed. Sort the values: the
# smallest has index 0, the largest index `n - 1`. Rank 0 is index 0, rank 100 is index `n - 1`, and rank
# `r` is index `r / 100 * (n - 1)`. That is rarely a whole number: interpolate linearly between the two neighbours.
#
# By hand, `[40, 10, 30, 20]`, p50: sorted 10, 20, 30, 40; the index is 1.5, half way from 20 to 30: 25.
#
# **Goodput** counts only requests that meet an **SLO** (service level objective). The SLO here has two limits: the first token
# comes within `ttft_slo` seconds of the arrival, **and** the *mean* gap between the tokens of this request is at most
# `tpot_slo` seconds. (An answer of one token has no gap; only the first limit applies.) Goodput is the number of requests that
# meet both limits, divided by the seconds of the whole run: from the first arrival to the last token of any request.
#
# The mean gap of an answer is called TPOT (time per output token). ITL (inter-token latency) is each single gap.
# `--goodput` of vLLM's own benchmark takes limits for `ttft`, `tpot` and `e2el`, the time to the end.
#
# A request is a pair: `(arrival, [time of token 1, time of token 2, ...])`. By hand, with `ttft_slo` 1.0 and `tpot_slo` 0.5:
#
#     (2.0, [2.5, 2.6, 2.7])    first token after 0.5, mean gap 0.1    meets both
#     (2.0, [4.5, 4.6])         first token after 2.5                  too late
#     (3.0, [3.2, 4.2, 5.2])    first token after 0.2, mean gap 1.0    too slow
#
# The run lasts from 2.0 to 5.2. Goodput: 1 / 3.2 = 0.3125 requests per second.

# %%
from exercises.grading import check, hint


# %% tags=["answer"]
def percentile(values: list[float], rank: float) -> float:
    """Compute the percentile of `rank` (0 to 100), interpolated linearly."""
    # BEGIN SOLUTION
    ordered = sorted(values)
    place = rank / 100 * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
    # END SOLUTION


def goodput(requests: list[tuple[float, list[float]]], ttft_slo: float, tpot_slo: float) -> float:
    """Compute the requests per second that meet both limits."""
    # BEGIN SOLUTION
    good = 0
    for arrival, times in requests:
        gaps = len(times) - 1
        mean_gap = (times[-1] - times[0]) / gaps if gaps else 0.0
        good += times[0] - arrival <= ttft_slo and mean_gap <= tpot_slo
    begin = min(arrival for arrival, _ in requests)
    end = max(times[-1] for _, times in requests)
    return good / (end - begin)
    # END SOLUTION


# %% tags=["check"]
check("p4e5_percentiles_goodput", percentile, goodput)

# %% [markdown]
# ## Into the engine
#
# The small engine that you build in this course (`lab mine` runs it) serves eight requests and records the time of each token. Your
# figures of that run must equal the course's. (They are not printed, because times differ between machines.)
# %% tags=["engine"]
from exercises.capstone.your_engine import in_your_engine

in_your_engine("p4e5_percentiles_goodput", percentile, goodput)
