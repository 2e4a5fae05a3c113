"""What the engine hands back: answers, their text as it becomes certain, and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from phase1_tokens_embeddings.tokens import BPETokenizer, StreamDecoder
from phase2_attention_kvcache.model.sampling_params import SamplingParams


@dataclass
class RequestMetrics:
    """When things happened to an answer, in seconds of the engine's clock.

    Attributes:
        arrival_time: when the request was added. first_scheduled_time: when its first step began.
        token_times: when each token was there. finished_time: when the last one was.
        num_cached_tokens: prompt tokens that a prefix hit saved. num_preemptions: how often it made room.
    """

    arrival_time: float
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
class Completion:
    """One answer, or what is new of it.

    Attributes:
        index: which of the n answers.
        finish_reason: "stop" (end of text, stop token or stop string), "length", "abort", "error"; None
            while it goes on.
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


@dataclass
class RequestOutput:
    """What the engine says of a request. From `generate`: everything. From `step` and `stream`: what is new.

    `token_ids`, `text`, `finish_reason`, `stop_reason`, `logprobs` and `metrics` are those of its first (in
    a step: its only) answer.

    Attributes:
        prompt: the text, or None if the prompt came as token ids.
        outputs: the answers.
        finished: whether all answers are complete.
        prompt_logprobs: for each token of the prompt but the first, token id -> log probability.
        error: what went wrong, if finish_reason is "error".
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Completion]
    finished: bool = False
    prompt_logprobs: list[dict[int, float] | None] | None = None
    error: str | None = None

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def finish_reason(self) -> str | None:
        return self.outputs[0].finish_reason

    @property
    def stop_reason(self) -> int | str | None:
        return self.outputs[0].stop_reason

    @property
    def logprobs(self) -> list[dict[int, float]] | None:
        return self.outputs[0].logprobs

    @property
    def metrics(self) -> RequestMetrics:
        return self.outputs[0].metrics


class AnswerText:
    """Turns an answer's tokens into text that is certain, and finds stop strings in it.

    A stop string may begin in one token and end three tokens later. So text that might be the beginning of
    one is held back until it is clear: a user must never see half of it. Nothing else waits.

    >>> text = AnswerText(tokenizer, SamplingParams(stop="END"))
    >>> [text.push(i) for i in tokenizer.encode("the E")], text.stopped_by
    (['the', ' '], None)

    Source: vllm/v1/engine/detokenizer.py.
    """

    def __init__(self, tokenizer: BPETokenizer, params: SamplingParams) -> None:
        self._decoder = StreamDecoder(tokenizer, params.skip_special_tokens)
        self._vocab_size = tokenizer.vocab_size
        self._stop: Sequence[str] = params.stop
        self._keep_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._held = ""  # decoded, not shown yet
        self.stopped_by: str | None = None

    def push(self, token_id: int) -> str:
        """Take one token; return the text that is certain now."""
        self._num_tokens += 1
        if token_id >= self._vocab_size:  # tables are often padded: such a token stands for no text
            return self._release("")
        return self._release(self._decoder.push(token_id))

    def finish(self) -> str:
        """No more tokens will come: return what waits."""
        rest = self._release(self._decoder.finish())
        if self.stopped_by is None:
            rest, self._held = rest + self._held, ""
        return rest

    def _release(self, new: str) -> str:
        if self.stopped_by is not None:
            return ""
        text = self._held + new
        if not self._stop:
            return text
        if self._num_tokens > self._min_tokens:
            # It has to end in the new text: what is held back was searched before, or came too early to count.
            old = len(self._held)
            found = [
                (at, -len(s), s) for s in self._stop if (at := text.find(s, max(0, old + 1 - len(s)))) >= 0
            ]
            if found:  # the first to begin; of two that begin together the longer one
                at, _, self.stopped_by = min(found)
                self._held = ""
                return text[: at + len(self.stopped_by)] if self._keep_stop else text[:at]
        waiting = max(_overlap(text, s) for s in self._stop)
        self._held = text[len(text) - waiting :]
        return text[: len(text) - waiting]


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` that may be the beginning of `stop`, but not all of it."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
