"""The engine's outputs: tokens and text, the reason why an answer ended, and times.

Source: vllm/outputs.py.
"""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass
class RequestMetrics:
    """The times of an answer, in seconds of the engine's clock.

    Attributes:
        arrival_time: when the request was added; in a server, when it arrived, before it was tokenized.
        queued_time: when the core queued it up. first_scheduled_time: when its first step began.
        token_times: when each token was complete. finished_time: when the last token was.
        num_cached_tokens: prompt tokens found in the prefix cache. num_preemptions: how often it was preempted.
    """

    arrival_time: float
    queued_time: float | None = None
    first_scheduled_time: float | None = None
    token_times: list[float] = field(default_factory=list)
    finished_time: float | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0

    @property
    def ttft(self) -> float | None:
        """Time to first token, seconds, waiting included. None before that."""
        return self.token_times[0] - self.arrival_time if self.token_times else None

    @property
    def itls(self) -> list[float]:
        """Inter-token latencies, seconds: from each token to the next."""
        return [b - a for a, b in zip(self.token_times, self.token_times[1:])]

    @property
    def e2e(self) -> float | None:
        """End to end, seconds: from arrival to the last token. None before that."""
        return None if self.finished_time is None else self.finished_time - self.arrival_time


@dataclass
class CompletionOutput:
    """One answer, or its new part.

    Attributes:
        index: which of the n answers.
        finish_reason: "stop" (end of text, stop token or stop string), "length", "abort", "error"; None
            while it continues.
        stop_reason: the stop token or the stop string; None for an ordinary end of text.
        logprobs: for each token, token id -> log probability; None unless asked for.
    """

    index: int
    token_ids: list[int]
    text: str
    metrics: RequestMetrics
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[dict[int, float]] | None = None


def _of_first(name: str) -> property:
    return property(lambda self: getattr(self.outputs[0], name), doc=f"`{name}` of the first answer.")


@dataclass
class RequestOutput:
    """The output of a request: all of it from `generate`, the new part from `step` and `stream`.

    `token_ids`, `text`, `finish_reason`, `stop_reason`, `logprobs` and `metrics` are those of its first (in
    a step: its only) answer.

    Attributes:
        prompt: the text, or None if the prompt came as token ids.
        outputs: the answers.
        finished: whether all answers are complete.
        error: what went wrong, if finish_reason is "error".
        extras: values from extensions of the engine; `output.NAME` reads them too.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    error: str | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        extras = vars(self).get("extras", {})
        if name not in extras:
            raise AttributeError(f"a RequestOutput has no {name!r}, and no extension of the engine gave one")
        return extras[name]

    def add(self, new: "RequestOutput") -> None:
        """Add the output of a further step."""
        self.finished, self.error = new.finished, new.error
        self.extras |= new.extras
        for part in new.outputs:
            at = bisect_left(self.outputs, part.index, key=lambda c: c.index)  # there may be thousands
            if self.outputs[at : at + 1] == [] or self.outputs[at].index != part.index:
                known = replace(part, token_ids=[], text="", logprobs=None if part.logprobs is None else [])
                self.outputs.insert(at, known)
            known = self.outputs[at]
            known.token_ids += part.token_ids
            known.text += part.text
            known.finish_reason, known.stop_reason = part.finish_reason, part.stop_reason
            if part.logprobs is not None:
                known.logprobs += part.logprobs

    token_ids, text, logprobs = _of_first("token_ids"), _of_first("text"), _of_first("logprobs")
    finish_reason, stop_reason = _of_first("finish_reason"), _of_first("stop_reason")
    metrics = _of_first("metrics")
