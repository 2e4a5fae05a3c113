"""What the nights ask the metrics, in PromQL.

`[1m]` in a query stands for the window of the night, which is shorter.
"""

from phase4_scheduler.server.drills.evidence import Cause, Check


def mean(name: str) -> str:
    """PromQL of a histogram's mean: what was observed in a minute, divided by how often."""
    return f"rate(vllm:{name}_sum[1m]) / rate(vllm:{name}_count[1m])"


TTFT, ITL = mean("time_to_first_token_seconds"), mean("inter_token_latency_seconds")
QUEUE, PREFILL = mean("request_queue_time_seconds"), mean("request_prefill_time_seconds")
PROMPT, ANSWER = mean("request_prompt_tokens"), mean("request_generation_tokens")
STEP = mean("iteration_tokens_total")
RUNNING, WAITING = (
    "avg_over_time(vllm:num_requests_running[1m])",
    "avg_over_time(vllm:num_requests_waiting[1m])",
)
KV = "max_over_time(vllm:kv_cache_usage_perc[1m])"
PREEMPTIONS, TOKENS = "rate(vllm:num_preemptions_total[1m])", "rate(vllm:generation_tokens_total[1m])"
HIT_RATE = "rate(vllm:prefix_cache_hits_total[1m]) / rate(vllm:prefix_cache_queries_total[1m])"
FRONTEND = f"{TTFT} - {QUEUE} - {PREFILL}"
MEMORY = "sum(max_over_time(process_resident_memory_bytes[1m]))"
BAD = "phase4_scheduler.server.drills.bad_middleware"


PREFILL_STEPS = f"({PREFILL}) / ({ITL})"
"""In how many steps a prompt is computed, about: an ITL is the time of a step. (vllm:iteration_tokens_total does not tell: it
counts a prompt as a whole, in the step that computes its last piece.)"""


OTHER_PROGRAM = Cause(
    "neighbour",
    "Another program computes on the same cores.",
    (
        Check("tokens come more slowly", ITL, "ratio", ">", 1.4),
        Check("though not more requests run than before", RUNNING, "ratio", "<", 1.4),
        Check("and not fewer", RUNNING, "ratio", ">", 0.7),
        Check("and none makes room for another", PREEMPTIONS, "now", "<", 0.05),
        Check("and steps have as many tokens as before", STEP, "ratio", "<", 1.5),
    ),
    "Find it (top), and move it or the server to other cores.",
)
