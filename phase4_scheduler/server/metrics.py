"""vLLM's metrics of this engine, for Prometheus: same names, labels and buckets, so that its dashboards fit.

A counter only grows; its rate says how fast. A gauge goes up and down. A histogram counts, for each bound, how many
observations were at most so large, and sums them up: sum / count is the mean.

Two clocks. What a client waits for starts when its request comes in, before it is tokenised, and ends when a token is
back in the API process. What happens in the engine is told by the engine's times. So time to first token - queue -
prefill is what the API process took.

Source: vllm/v1/metrics/loggers.py, stats.py and buckets.py.
"""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from phase4_scheduler.engine.output_processor import ParentRequest
from phase4_scheduler.engine.outputs import CompletionOutput
from phase4_scheduler.features.speculation import SpecDecodingStats
from phase4_scheduler.server.engine_process import EngineLimits, StepMessage

# bounds, in seconds
FIRST_TOKEN = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)  # fmt: skip
NEXT_TOKEN = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # fmt: skip
LATENCY = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)  # fmt: skip

GAUGES = {
    "num_requests_running": "Requests that take part in steps.",
    "num_requests_waiting": "Requests in the waiting queue.",
    "kv_cache_usage_perc": "Share of the KV cache's blocks that requests hold; 1 is all.",
}
COUNTERS = {
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache.",
    "num_preemptions": "Preemptions.",
    "prompt_tokens": "Prompt tokens, cached ones included.",
    "prompt_tokens_cached": "Prompt tokens that were not computed, because they were cached.",
    "generation_tokens": "Generated tokens.",
    "estimated_flops_per_gpu": "Operations of all steps, estimated (--enable-mfu-metrics).",
    "estimated_read_bytes_per_gpu": "Bytes that all steps read from memory, estimated.",
    "estimated_write_bytes_per_gpu": "Bytes that all steps wrote to memory, estimated.",
}
SPEC_DECODE = {  # with speculative decoding only
    "num_drafts": "How often a request had draft tokens verified in a step.",
    "num_draft_tokens": "Draft tokens that were verified.",
    "num_accepted_tokens": "Draft tokens that were accepted.",
}
SECONDS = {
    "time_to_first_token_seconds": ("From the arrival of a request to its first token.", FIRST_TOKEN),
    "inter_token_latency_seconds": ("From each token to the next.", NEXT_TOKEN),
    "request_time_per_output_token_seconds": ("Mean time per token after the first, by request.", NEXT_TOKEN),
    "e2e_request_latency_seconds": ("From arrival to the last token.", LATENCY),
    "request_queue_time_seconds": ("From the engine's queue to the first step.", LATENCY),
    "request_prefill_time_seconds": ("From the first step to the first token.", LATENCY),
    "request_decode_time_seconds": ("From the first token to the last.", LATENCY),
    "request_inference_time_seconds": ("From the first step to the last token.", LATENCY),
}
TOKENS = {
    "request_prompt_tokens": "Tokens of a prompt.",
    "request_generation_tokens": "Tokens of an answer.",
    "request_params_max_tokens": "max_tokens of a request.",
    "request_max_num_generation_tokens": "Tokens of the longest of a request's n answers.",
    "request_prefill_kv_computed_tokens": "Prompt tokens whose keys and values were computed, not cached.",
}
COUNTS = {
    "iteration_tokens_total": ("Prompt tokens computed plus tokens generated, by step.", [1, *(2**i for i in range(3, 15))]),
    "request_params_n": ("n of a request.", [1, 2, 5, 10, 20]),
    "request_num_preemptions": ("Preemptions of a request.", [1, 2, 3, 4, 5, 10, 20]),
}  # fmt: skip
# Families with one label more, and all its values: a series that is there from the start has a rate.
LABELLED = {
    "request_success": (Counter, "Finished requests, by reason.",
                        "finished_reason", ("stop", "length", "abort", "error", "repetition")),
    "prompt_tokens_by_source": (Counter, "Prompt tokens, by source.",
                                "source", ("local_compute", "local_cache_hit", "external_kv_transfer")),
    "num_requests_waiting_by_reason": (Gauge, "Waiting requests, by reason.", "reason", ("capacity", "deferred")),
}  # fmt: skip


def one_two_five(largest: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... up to `largest`."""
    bounds = [digit * 10**power for power in range(len(str(largest))) for digit in (1, 2, 5)]
    return [bound for bound in bounds if bound <= largest]


class Metrics:
    """All families of one engine. Each of its methods says when it is to be called.

    Args:
        engine: the number of the replica, a label of its series.
        beside: of another replica: these are on the same page.
    """

    def __init__(
        self, model_name: str, limits: EngineLimits, engine: int = 0, beside: "Metrics | None" = None
    ) -> None:
        self.registry = beside.registry if beside else CollectorRegistry()
        if beside is None:
            for collector in (ProcessCollector, PlatformCollector, GCCollector):  # of the API process
                collector(registry=self.registry)
        self._families: dict[str, Counter | Gauge | Histogram] = beside._families if beside else {}
        self._labels = {"model_name": model_name, "engine": str(engine)}
        self._gauges = {name: self._make(Gauge, name, text) for name, text in GAUGES.items()}
        self._counters = {name: self._make(Counter, name, text) for name, text in COUNTERS.items()}
        tokens = one_two_five(limits.max_model_len)
        bounded = SECONDS | COUNTS | {name: (text, tokens) for name, text in TOKENS.items()}
        self._histograms = {
            name: self._make(Histogram, name, text, buckets=bounds)
            for name, (text, bounds) in bounded.items()
        }
        self._by_label = {
            (name, value): self._make(kind, name, text, **{label: value})
            for name, (kind, text, label, values) in LABELLED.items()
            for value in values
        }
        drafts, per_position = limits.num_speculative_tokens, "spec_decode_num_accepted_tokens_per_pos"
        self._spec_decode = {
            name: self._make(Counter, f"spec_decode_{name}", text)
            for name, text in (SPEC_DECODE.items() if drafts else ())
        }
        self._accepted_at = [
            self._make(Counter, per_position, "Accepted draft tokens, by position.", position=str(i))
            for i in range(drafts)
        ]
        self._rejected = beside._rejected if beside else Counter(
            "vllm:admission_rejections", "Requests refused because too many are in progress.", ["model_name", "reason"],
            registry=self.registry,
        ).labels(model_name, "max_num_queued_reqs")  # fmt: skip
        tokens_held = limits.num_blocks * limits.block_size
        settings = {
            "block_size": limits.block_size,
            "num_gpu_blocks": limits.num_blocks,
            "enable_prefix_caching": limits.config.enable_prefix_caching,
            "kv_cache_size_tokens": tokens_held,
            "kv_cache_max_concurrency": tokens_held / limits.max_model_len,
        }
        self._make(
            Gauge, "cache_config_info", "Settings of the cache.", **{k: str(v) for k, v in settings.items()}
        ).set(1)
        self._last = StepMessage()  # counters that came as totals
        self._iteration_tokens = 0  # of the message that is being handed out

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

    def grew(self, parent: ParentRequest, part: CompletionOutput, now: float) -> None:
        """When an answer grew, or ended. `now`: when the API process heard of it."""
        times, seen = part.metrics.token_times, self._histograms
        if part.token_ids:
            self._counters["generation_tokens"].inc(len(part.token_ids))
            self._iteration_tokens += len(part.token_ids)
            if before := len(times) - len(part.token_ids):  # several tokens of one step are one observation
                seen["inter_token_latency_seconds"].observe(times[-1] - times[before - 1])
            else:
                seen["time_to_first_token_seconds"].observe(now - part.metrics.arrival_time)
                self._prompt(parent, part)
        if part.finish_reason is not None:
            self._by_label["request_success", part.finish_reason].inc()
            if part.finish_reason != "error":
                self._ended(parent, part, now)

    def _prompt(self, parent: ParentRequest, part: CompletionOutput) -> None:
        """n answers to a prompt count it n times: they are n requests, which share its full blocks."""
        total, computed = len(parent.prompt_token_ids), num_computed(parent, part)
        self._counters["prompt_tokens"].inc(total)
        self._counters["prompt_tokens_cached"].inc(total - computed)
        self._by_label["prompt_tokens_by_source", "local_compute"].inc(computed)
        self._by_label["prompt_tokens_by_source", "local_cache_hit"].inc(total - computed)
        self._iteration_tokens += computed

    def _ended(self, parent: ParentRequest, part: CompletionOutput, now: float) -> None:
        m, params, seen = part.metrics, parent.params, self._histograms
        first, last, num_tokens = m.token_times[0], m.token_times[-1], len(m.token_times)
        for name, value in (
            ("e2e_request_latency_seconds", now - m.arrival_time),
            ("request_queue_time_seconds", m.first_scheduled_time - m.queued_time),
            ("request_prefill_time_seconds", first - m.first_scheduled_time),
            ("request_decode_time_seconds", last - first),
            ("request_inference_time_seconds", last - m.first_scheduled_time),
            # vLLM: an answer of one token counts as 0 and pulls the mean down.
            ("request_time_per_output_token_seconds", (last - first) / max(num_tokens - 1, 1)),
            ("request_prompt_tokens", len(parent.prompt_token_ids)),
            ("request_generation_tokens", num_tokens),
            ("request_prefill_kv_computed_tokens", num_computed(parent, part)),
            ("request_num_preemptions", m.num_preemptions),
        ):
            seen[name].observe(value)
        if params.max_tokens is not None:
            seen["request_params_max_tokens"].observe(params.max_tokens)
        if parent.num_unfinished == 0:  # once for all of its answers
            longest = max(len(state.metrics.token_times) for state in parent.states)
            seen["request_max_num_generation_tokens"].observe(longest)
            seen["request_params_n"].observe(params.n)

    def step(self, message: StepMessage) -> None:
        """After each message of the engine, when its outputs are handed out."""
        self._gauges["num_requests_running"].set(message.num_running)
        self._gauges["num_requests_waiting"].set(message.num_waiting)
        self._by_label["num_requests_waiting_by_reason", "capacity"].set(message.num_waiting)
        self._gauges["kv_cache_usage_perc"].set(message.kv_cache_usage)
        for counter, total in (
            ("prefix_cache_queries", "prefix_queries"),
            ("prefix_cache_hits", "prefix_hits"),
            ("num_preemptions", "num_preemptions"),
        ):
            self._counters[counter].inc(getattr(message.stats, total) - getattr(self._last.stats, total))
        if stats := message.spec_decode:
            before = self._last.spec_decode or SpecDecodingStats.of(len(self._accepted_at))
            for name, counter in self._spec_decode.items():
                counter.inc(getattr(stats, name) - getattr(before, name))
            per_position = zip(
                stats.num_accepted_tokens_per_pos, before.num_accepted_tokens_per_pos, strict=True
            )
            for counter, (now, then) in zip(self._accepted_at, per_position, strict=True):
                counter.inc(now - then)
        if work := message.work:
            self._counters["estimated_flops_per_gpu"].inc(work.operations)
            self._counters["estimated_read_bytes_per_gpu"].inc(work.bytes - work.written)
            self._counters["estimated_write_bytes_per_gpu"].inc(work.written)
        if self._iteration_tokens:  # a step in the middle of a prompt brought nothing yet
            self._histograms["iteration_tokens_total"].observe(self._iteration_tokens)
        self._iteration_tokens, self._last = 0, message

    def restarted(self) -> None:
        """When the engine is a new one, whose totals begin at 0."""
        self._last = StepMessage()

    def rejected(self) -> None:
        """When a request is refused since too many wait."""
        self._rejected.inc()


def num_computed(parent: ParentRequest, part: CompletionOutput) -> int:
    """Prompt tokens that were computed for an answer."""
    return len(parent.prompt_token_ids) - part.metrics.num_cached_tokens
