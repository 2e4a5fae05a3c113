"""vLLM's metrics of this engine, for Prometheus: same names, labels and buckets, so that its dashboards fit.

A counter only grows; its rate says how fast. A gauge goes up and down. A histogram counts, for each bound, how many
observations were at most so large, and sums them up: sum / count is the mean.

Source: vllm/v1/metrics/loggers.py and buckets.py.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from phase4_scheduler.engine.output_processor import ParentRequest
from phase4_scheduler.engine.outputs import CompletionOutput
from phase4_scheduler.server.engine_process import EngineLimits, StepMessage

# bounds, in seconds
FIRST_TOKEN = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)  # fmt: skip
NEXT_TOKEN = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # fmt: skip
LATENCY = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)  # fmt: skip

GAUGES = {
    "num_requests_running": "Requests that take part in steps.",
    "num_requests_waiting": "Requests that wait to be admitted.",
    "kv_cache_usage_perc": "Share of the KV cache's blocks that some request holds; 1 is all.",
}
COUNTERS = {
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens found there.",
    "num_preemptions": "Requests that had to make room.",
    "prompt_tokens": "Tokens of prompts that were processed.",
    "prompt_tokens_cached": "Those of them that were found in the prefix cache.",
    "generation_tokens": "Tokens written.",
}
SECONDS = {
    "time_to_first_token_seconds": ("From the arrival of a request to its first token.", FIRST_TOKEN),
    "inter_token_latency_seconds": ("From each token to the next.", NEXT_TOKEN),
    "request_time_per_output_token_seconds": ("Mean time a token after the first, by request.", NEXT_TOKEN),
    "e2e_request_latency_seconds": ("From arrival to the last token.", LATENCY),
    "request_queue_time_seconds": ("From arrival to the first step.", LATENCY),
    "request_prefill_time_seconds": ("From the first step to the first token.", LATENCY),
    "request_decode_time_seconds": ("From the first token to the last.", LATENCY),
    "request_inference_time_seconds": ("From the first step to the last token.", LATENCY),
}
TOKENS = {
    "request_prompt_tokens": "Tokens of a prompt.",
    "request_generation_tokens": "Tokens of an answer.",
    "request_params_max_tokens": "max_tokens of a request.",
    "request_max_num_generation_tokens": "Most tokens asked of one answer.",
    "request_prefill_kv_computed_tokens": "Prompt tokens whose keys and values were computed, not found.",
}


def one_two_five(largest: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... up to `largest`."""
    bounds = [digit * 10**power for power in range(len(str(largest))) for digit in (1, 2, 5)]
    return [bound for bound in bounds if bound <= largest]


class Metrics:
    """All families of one server. Each of its methods says when it is to be called."""

    def __init__(self, model_name: str, limits: EngineLimits) -> None:
        self.registry = CollectorRegistry()
        self._families: dict[str, Counter | Gauge | Histogram] = {}
        self._labels = {"model_name": model_name, "engine": "0"}
        tokens = one_two_five(limits.max_model_len)
        self._gauges = {name: self._make(Gauge, name, text) for name, text in GAUGES.items()}
        self._counters = {name: self._make(Counter, name, text) for name, text in COUNTERS.items()}
        self._histograms = {
            name: self._make(Histogram, name, text, buckets=bounds)
            for name, (text, bounds) in SECONDS.items()
        }
        for name, text in TOKENS.items():
            self._histograms[name] = self._make(Histogram, name, text, buckets=tokens)
        for name, text, bounds in (
            ("iteration_tokens_total", "Tokens of a step.", [1, *(2**i for i in range(3, 15))]),
            ("request_params_n", "n of a request.", [1, 2, 5, 10, 20]),
            ("request_num_preemptions", "How often a request made room.", [1, 2, 3, 4, 5, 10, 20]),
        ):
            self._histograms[name] = self._make(Histogram, name, text, buckets=bounds)
        self._success = {
            reason: self._make(
                Counter, "request_success", "Requests that ended, by why.", finished_reason=reason
            )
            for reason in ("stop", "length", "abort", "error", "repetition")
        }
        self._by_source = {
            source: self._make(
                Counter, "prompt_tokens_by_source", "Prompt tokens, by where from.", source=source
            )
            for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
        }
        self._by_reason = {
            reason: self._make(
                Gauge, "num_requests_waiting_by_reason", "Waiting requests, by why.", reason=reason
            )
            for reason in ("capacity", "deferred")
        }
        self._rejections = Counter(
            "vllm:admission_rejections", "Requests refused since too many wait.", ["model_name", "reason"],
            registry=self.registry,
        ).labels(model_name, "max_num_queued_reqs")  # fmt: skip
        settings = {
            "block_size": limits.block_size,
            "num_gpu_blocks": limits.num_blocks,
            "enable_prefix_caching": limits.config.enable_prefix_caching,
        }
        info = self._make(
            Gauge, "cache_config_info", "Settings of the cache.", **{k: str(v) for k, v in settings.items()}
        )
        info.set(1)
        self._last = StepMessage()  # counters that came as totals

    def _make(self, kind, name, text, buckets=None, **more):
        """A family with the labels of all, and with `more`; the same again where it is known."""
        if name not in self._families:
            options = {} if buckets is None else {"buckets": buckets}
            self._families[name] = kind(
                f"vllm:{name}", text, [*self._labels, *more], registry=self.registry, **options
            )
        return self._families[name].labels(**self._labels, **more)

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)

    # ------------------------------------------------------------------ what happens

    def step(self, message: StepMessage) -> None:
        """After each message of the engine."""
        self._gauges["num_requests_running"].set(message.num_running)
        self._gauges["num_requests_waiting"].set(message.num_waiting)
        self._by_reason["capacity"].set(message.num_waiting)
        self._gauges["kv_cache_usage_perc"].set(message.kv_cache_usage)
        for counter, total in (
            ("prefix_cache_queries", "prefix_queries"),
            ("prefix_cache_hits", "prefix_hits"),
            ("num_preemptions", "num_preemptions"),
        ):
            self._counters[counter].inc(getattr(message, total) - getattr(self._last, total))
        if message.num_batched_tokens:
            self._histograms["iteration_tokens_total"].observe(message.num_batched_tokens)
        self._last = message

    def grew(self, parent: ParentRequest, part: CompletionOutput) -> None:
        """When an answer grew, or ended."""
        times, seen = part.metrics.token_times, self._histograms
        if part.token_ids:
            self._counters["generation_tokens"].inc(len(part.token_ids))
            if len(times) > 1:
                seen["inter_token_latency_seconds"].observe(times[-1] - times[-2])
            else:
                seen["time_to_first_token_seconds"].observe(times[0] - part.metrics.arrival_time)
                if part.index == 0:
                    self._prompt(parent, part)
        if part.finish_reason is not None:
            self._success[part.finish_reason].inc()
            if part.finish_reason not in ("abort", "error"):
                self._ended(parent, part)

    def _prompt(self, parent: ParentRequest, part: CompletionOutput) -> None:
        total, cached = len(parent.prompt_token_ids), part.metrics.num_cached_tokens
        self._counters["prompt_tokens"].inc(total)
        self._counters["prompt_tokens_cached"].inc(cached)
        self._by_source["local_compute"].inc(total - cached)
        self._by_source["local_cache_hit"].inc(cached)

    def _ended(self, parent: ParentRequest, part: CompletionOutput) -> None:
        m, params, seen = part.metrics, parent.params, self._histograms
        first, last = m.token_times[0], m.token_times[-1]
        for name, value in (
            ("e2e_request_latency_seconds", last - m.arrival_time),
            ("request_queue_time_seconds", m.first_scheduled_time - m.arrival_time),
            ("request_prefill_time_seconds", first - m.first_scheduled_time),
            ("request_decode_time_seconds", last - first),
            ("request_inference_time_seconds", last - m.first_scheduled_time),
            ("request_prompt_tokens", len(parent.prompt_token_ids)),
            ("request_generation_tokens", len(m.token_times)),
            ("request_max_num_generation_tokens", len(m.token_times)),
            ("request_prefill_kv_computed_tokens", len(parent.prompt_token_ids) - m.num_cached_tokens),
            ("request_num_preemptions", m.num_preemptions),
            ("request_params_n", params.n),
        ):
            seen[name].observe(value)
        if params.max_tokens is not None:
            seen["request_params_max_tokens"].observe(params.max_tokens)
        if len(m.token_times) > 1:
            mean = (last - first) / (len(m.token_times) - 1)
            seen["request_time_per_output_token_seconds"].observe(mean)

    def rejected(self) -> None:
        """When a request is refused since too many wait."""
        self._rejections.inc()
