# %% [markdown]
# # 4.6 Two causes, one query
#
# A server is slow, and the metrics know why. On call you have seconds, so the question is put beforehand, in **PromQL**, the
# query language of Prometheus. An **alert** is a query that gives a value when something is wrong, and nothing otherwise:
#
# | PromQL | what it gives |
# |---|---|
# | `vllm:num_requests_waiting` | the last value |
# | `rate(vllm:generation_tokens_total[10s])` | how much a counter grew a second, in the last 10 s |
# | `rate(vllm:x_seconds_sum[10s]) / rate(vllm:x_seconds_count[10s])` | the mean of what was observed in the last 10 s |
# | `avg_over_time(vllm:num_requests_waiting[10s])`, `max_over_time`, `min_over_time` | of a gauge, in the last 10 s |
# | `A > 0.5` | A where that holds, nothing where it does not |
# | `A > 0.5 and B < 1` | A where both hold |
#
# Three rules of the trade:
#
# - A **counter** only grows, and has done so since the server started. Its value says nothing, its `rate` says all.
# - What a **millisecond** means depends on the machine. Ask for shares (queue time / TTFT), for counts, or for 0 or not 0.
# - A name that no series has, or two sides whose labels differ, is no error. The result is empty, and the alert never rings.
#
# These are the metrics of real nights (`lab run war_room --list`): a minute in which all was well, and minutes with a fault.
# Ask them:

# %%
from exercises.grading import check, hint
from exercises.phase4.nights import minutes_of
from exercises.phase4.two_causes import ask

ask(1, "rate(vllm:time_to_first_token_seconds_sum[10s]) / rate(vllm:time_to_first_token_seconds_count[10s])")
ask(4, "avg_over_time(vllm:num_requests_running[10s])")
ask(5, "rate(vllm:prefix_cache_hits_total[10s]) / rate(vllm:prefix_cache_queries_total[10s])")
print("The names:", *minutes_of(1)[0].names, sep="\n  ")

# %% [markdown]
# Write four alerts. Each rings in the minutes of one cause and is silent in all others of that night, the healthy one
# included. One `>` or `<` is often enough; if not, join two with `and`.
#
# | alert | rings | silent |
# |---|---|---|
# | `too_few_seats_for_all` (night 1) | `queue`: 48 users, 8 seats | `prompts`: prompts of 800 tokens; `frontend`: the API process is blocked |
# | `one_at_a_time` (night 4) | `client`: sends one request, waits for the answer, sends the next | `seats`: one runs at a time, the others wait; `pool`: few fit the cache |
# | `cache_too_small` (night 4) | `pool` | `client`, `seats` |
# | `nothing_alike` (night 5) | `timestamp`: each prompt begins with the time, so no prefix is ever found | `off`: caching is switched off; `eviction`: more documents than the cache holds |
#
# `check` rings them on the recorded nights, on the same nights as a machine five times as slow or as fast would have seen them,
# on a server that has been up for a day, and on one without requests: there all of them are silent.

# %% tags=["answer"]
too_few_seats_for_all = ...
one_at_a_time = ...
cache_too_small = ...
nothing_alike = ...
# BEGIN SOLUTION
too_few_seats_for_all = """
    (rate(vllm:request_queue_time_seconds_sum[10s]) / rate(vllm:request_queue_time_seconds_count[10s]))
    / (rate(vllm:time_to_first_token_seconds_sum[10s]) / rate(vllm:time_to_first_token_seconds_count[10s])) > 0.5
"""
one_at_a_time = """
    avg_over_time(vllm:num_requests_running[10s]) < 2 and avg_over_time(vllm:num_requests_waiting[10s]) < 0.5
    and avg_over_time(vllm:num_requests_running[10s]) > 0
"""
cache_too_small = "max_over_time(vllm:kv_cache_usage_perc[10s]) > 0.8"
nothing_alike = "rate(vllm:prefix_cache_hits_total[10s]) / rate(vllm:prefix_cache_queries_total[10s]) < 0.02"
# END SOLUTION

# %% tags=["check"]
check("p4e6_two_causes", too_few_seats_for_all, one_at_a_time, cache_too_small, nothing_alike)

# %% [markdown]
# Now you are on call, with a real server: `lab run war_room --drill 1 --seed 2 --predict`.
