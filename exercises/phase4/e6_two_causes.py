# %% [markdown]
# # 4.6 Two causes, one query
#
# A server is slow, and its metrics show why. On call there is little time, so the operator writes the questions beforehand in
# **PromQL**, the query language of Prometheus. An **alert** is a query that returns a value if something is wrong, and nothing
# otherwise. An alert that returns a value **fires**:
#
# | PromQL | result |
# |---|---|
# | `vllm:num_requests_waiting` | the last value |
# | `rate(vllm:generation_tokens_total[10s])` | the growth of a counter per second, over the last 10 s |
# | `rate(vllm:x_seconds_sum[10s]) / rate(vllm:x_seconds_count[10s])` | the mean of the values observed in the last 10 s |
# | `avg_over_time(vllm:num_requests_waiting[10s])`, `max_over_time`, `min_over_time` | of a gauge, over the last 10 s |
# | `A > 0.5` | A where the comparison holds, nothing elsewhere |
# | `A > 0.5 and B < 1` | A where both comparisons hold |
#
# Three rules of practice:
#
# - A **counter** only grows, from the start of the server on. Use its `rate`: its value covers the whole time since the start.
# - Whether a **millisecond** is long depends on the machine. Use shares (queue time / TTFT), counts, or a comparison with 0.
# - A name that no series has, or an operator whose two sides have different labels, is no error. The result is empty, and the
#   alert never fires.
#
# The metrics below were recorded in drills (`lab run war_room --list`): a healthy minute, and minutes with a fault.
# Query them:

# %%
from exercises.grading import check, hint
from exercises.phase4.recorded_drills import minutes_of
from exercises.phase4.two_causes import ask

ask(1, "rate(vllm:time_to_first_token_seconds_sum[10s]) / rate(vllm:time_to_first_token_seconds_count[10s])")
ask(4, "avg_over_time(vllm:num_requests_running[10s])")
ask(5, "rate(vllm:prefix_cache_hits_total[10s]) / rate(vllm:prefix_cache_queries_total[10s])")
print("The names:", *minutes_of(1)[0].names, sep="\n  ")

# %% [markdown]
# Write four alerts as strings. Each alert fires in the minutes of one cause, and in no other minute of its drill, the healthy one
# included. One `>` or `<` is often enough; if not, join two comparisons with `and`.
#
# | alert | fires | does not fire |
# |---|---|---|
# | `max_num_seqs_too_low` (drill 1) | `queue`: 48 users, `max_num_seqs` 8 | `prompts`: prompts of 800 tokens; `frontend`: the API process is blocked |
# | `one_at_a_time` (drill 4) | `client`: sends one request, waits for the answer, sends the next | `max_num_seqs`: one request runs at a time, the others wait; `pool`: the cache holds few requests |
# | `cache_too_small` (drill 4) | `pool` | `client`, `max_num_seqs` |
# | `no_hits` (drill 5) | `timestamp`: each prompt begins with the time, so the cache never has a hit | `off`: caching is switched off; `eviction`: more documents than the cache holds |
#
# `check` evaluates the alerts on the recorded drills, on the same drills as a machine five times as slow or as fast would have
# recorded them, on a server that has run for a day, and on a server without requests, where no alert may fire.

# %% tags=["answer"]
max_num_seqs_too_low = ...
one_at_a_time = ...
cache_too_small = ...
no_hits = ...
# BEGIN SOLUTION
max_num_seqs_too_low = """
    (rate(vllm:request_queue_time_seconds_sum[10s]) / rate(vllm:request_queue_time_seconds_count[10s]))
    / (rate(vllm:time_to_first_token_seconds_sum[10s]) / rate(vllm:time_to_first_token_seconds_count[10s])) > 0.5
"""
one_at_a_time = """
    avg_over_time(vllm:num_requests_running[10s]) < 2 and avg_over_time(vllm:num_requests_waiting[10s]) < 0.5
    and avg_over_time(vllm:num_requests_running[10s]) > 0
"""
cache_too_small = "max_over_time(vllm:kv_cache_usage_perc[10s]) > 0.8"
no_hits = "rate(vllm:prefix_cache_hits_total[10s]) / rate(vllm:prefix_cache_queries_total[10s]) < 0.02"
# END SOLUTION

# %% tags=["check"]
check("p4e6_two_causes", max_num_seqs_too_low, one_at_a_time, cache_too_small, no_hits)

# %% [markdown]
# Now find the fault of a real server: `lab run war_room --drill 1 --seed 2 --predict`.
