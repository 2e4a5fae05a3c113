from exercises.phase4.recorded_drills import minutes_of
from phase4_scheduler.server.drills import number


def mean(name):
    return f"rate(vllm:{name}_sum[10s]) / rate(vllm:{name}_count[10s])"


QUEUE, TTFT = map(mean, ("request_queue_time_seconds", "time_to_first_token_seconds"))
RUNNING, WAITING = (f"avg_over_time(vllm:num_requests_{state}[10s])" for state in ("running", "waiting"))
HITS = "rate(vllm:prefix_cache_hits_total[10s]) / rate(vllm:prefix_cache_queries_total[10s])"
KV = "max_over_time(vllm:kv_cache_usage_perc[10s])"

RATE = "rate(vllm:generation_tokens_total[10s])"


def between(drill, query, one, other):
    """A limit between what was found in the first minute of one cause and in the last of another."""
    minutes = minutes_of(drill)
    first = next(m for m in minutes if m.cause == one)
    last = next(m for m in reversed(minutes) if m.cause == other)
    return sum(number(m.recording, query, m.end) for m in (first, last)) / 2


RIGHT = (
    # Long prompts and a blocked API process leave at most a few requests in the queue.
    f"{WAITING} > 8",
    f"sum(vllm:num_requests_running) + sum(vllm:num_requests_waiting) < 3 and sum({RATE}) > 0 unless {WAITING} > 1",
    # Requests wait though more than one runs at a time in the mean; or requests are preempted.
    "rate(vllm:num_preemptions_total[10s]) > 0 or max_over_time(vllm:kv_cache_usage_perc[10s]) > 0.9",
    "increase(vllm:prefix_cache_queries_total[10s]) > 0 unless increase(vllm:prefix_cache_hits_total[10s]) > 0",
)
WRONG = {
    "wrong-type": {"cache_too_small": 0.9},
    "not-promql": {"no_hits": "rate(vllm:prefix_cache_hits_total) == 0"},
    "not-known-here": {"max_num_seqs_too_low": "deriv(vllm:num_requests_waiting[10s]) > 1"},
    "a-number-alone": {"one_at_a_time": "1 < bool 2"},
    "no-such-name": [
        # Its name until 2025; many dashboards still ask for it.
        {"cache_too_small": "vllm:gpu_cache_usage_perc > 0.9"},
        {"cache_too_small": "rate(vllm:num_preemptions[10s]) > 0"},
        {"max_num_seqs_too_low": "vllm:time_to_first_token_seconds > 1"},
    ],
    "counter-without-rate": {"cache_too_small": "vllm:num_preemptions_total > 0"},
    "no-comparison": {"max_num_seqs_too_low": f"({QUEUE}) / ({TTFT})"},
    "range-too-short": {"no_hits": HITS.replace("[10s]", "[500ms]") + " < 0.02"},
    "labels-differ": {"one_at_a_time": f"sum({RUNNING}) + {WAITING} < 2"},
    "never-fires": [{"cache_too_small": f"{KV} > 1"}, {"cache_too_small": f"{KV} > 90"}],
    "wrong-way-round": [{"no_hits": f"{HITS} > 0.02"}, {"one_at_a_time": f"{WAITING} > 1"}],
    "false-alarm": {"max_num_seqs_too_low": f"{WAITING} >= 0"},
    "takes-it-for-another": [
        {"one_at_a_time": f"{RUNNING} < 2"},  # max_num_seqs 1 looks the same
        {"cache_too_small": f"{WAITING} > 0.5"},
        {"no_hits": f"{HITS} < 0.7"},
    ],
    "hangs-on-the-machine": {
        "one_at_a_time": f"{RATE} < {between(4, RATE, 'client', 'nothing')} and {WAITING} < 0.5"
    },
    "fires-without-requests": {"one_at_a_time": f"{RUNNING} < 2 and {WAITING} < 1"},
    "misses-a-minute": {"max_num_seqs_too_low": f"{WAITING} > {between(1, WAITING, 'queue', 'queue')}"},
    "counts-since-the-start": {"cache_too_small": "max_over_time(vllm:num_preemptions_total[10s]) > 0"},
}
