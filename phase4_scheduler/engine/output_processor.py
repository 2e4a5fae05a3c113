"""From the core's tokens to what users get: text while it arrives, stop strings, and the n answers to one prompt.

The core knows sequences of tokens. A user asks for n answers to a prompt: that is n requests to the core, which share the
prompt's blocks through the prefix cache.

Source: vllm/v1/engine/output_processor.py, parallel_sampling.py and detokenizer.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from phase1_tokens_embeddings.tokens import StreamDecoder, Tokenizer
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.engine.core import EngineCoreOutput
from phase4_scheduler.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput
from phase4_scheduler.engine.request import Request


class IncrementalDetokenizer:
    """Turns an answer's tokens into text that is certain, and finds stop strings in it.

    A stop string may begin in one token and end three tokens later. So text that might be the beginning of
    one is held back until it is clear: a user must never see half of it. Nothing else waits.

    >>> detokenizer = IncrementalDetokenizer(tokenizer, SamplingParams(stop="END"))
    >>> [detokenizer.push(i) for i in tokenizer.encode("the E")], detokenizer.stopped_by
    (['the', ' '], None)
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._decoder = StreamDecoder(tokenizer, params.skip_special_tokens, continues=True)
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

    def update(self, token_id: int, finish_reason: str | None) -> tuple[str, str | None]:
        """Take a token, and why the sequence ends with it, if it does.

        Returns:
            the text that is certain now, and the stop string that is complete with it, if one is.
        """
        text = ""
        if finish_reason != "stop" or self._keep_stop:  # a stop token's own text is not shown
            text = self.push(token_id)
        if finish_reason is not None and self.stopped_by is None:
            text += self.finish()
        return text, self.stopped_by

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


class RequestState:
    """One answer while it is written.

    Attributes:
        request_id: under which the core knows it.
        index: which of its parent's answers it is.
    """

    def __init__(self, parent: ParentRequest, request_id: str, index: int) -> None:
        self.parent, self.request_id, self.index, self.finished = parent, request_id, index, False
        self.detokenizer = parent.tokenizer and IncrementalDetokenizer(parent.tokenizer, parent.params)
        self.metrics = RequestMetrics(parent.arrival_time)

    def completion(
        self,
        token_ids: list[int],
        text: str,
        now: float,
        finish_reason: str | None,
        stop_reason: int | str | None = None,
        logprobs: list[dict[int, float] | None] = (),
    ) -> CompletionOutput:
        """What is new of this answer."""
        if finish_reason is not None:
            self.finished = True
            self.metrics.finished_time = now
            self.parent.num_unfinished -= 1
        report = list(logprobs) if logprobs and logprobs[0] is not None else None
        return CompletionOutput(self.index, token_ids, text, self.metrics, finish_reason, stop_reason, report)


class ParentRequest:
    """A request as its user sees it: one prompt, and n answers to it.

    Attributes:
        requests: those of the core, one for each answer. Answer i of a seeded request has seed + i, as in vLLM.
        extras: what extensions of the core say about the request, by name.
    """

    def __init__(
        self,
        request: Request,
        prompt: str | None = None,
        tokenizer: Tokenizer | None = None,
        on_output: Callable[[RequestOutput], None] | None = None,
    ) -> None:
        self.request_id, self.params = request.request_id, request.params
        self.prompt, self.prompt_token_ids = prompt, request.prompt_token_ids
        self.arrival_time = request.arrival_time
        self.tokenizer, self.on_output = tokenizer, on_output
        self.num_unfinished = self.params.n
        self.extras: dict[str, Any] = {}
        self.requests = [request]
        if self.params.n > 1:
            self.requests = [answer_request(request, i) for i in range(self.params.n)]
        self.states = [RequestState(self, r.request_id, i) for i, r in enumerate(self.requests)]

    def output(self, completions: list[CompletionOutput], error: str | None = None) -> RequestOutput:
        """These completions, or what is new of them, as the user gets them."""
        finished = self.num_unfinished == 0
        return RequestOutput(
            self.request_id, self.prompt, self.prompt_token_ids, completions, finished, error, self.extras
        )


def answer_request(request: Request, index: int) -> Request:
    """Answer `index` to a request with n > 1, as a request of its own."""
    answer = copy.copy(request)
    answer.request_id = f"{index}_{request.request_id}"
    answer.params = request.params.for_answer(index)
    answer.generator = answer.params.make_generator()
    answer.token_ids, answer.output_token_ids = list(request.token_ids), []
    answer.block_table = type(request.block_table)()
    return answer


@dataclass
class ProcessedOutput:
    """An output for its user, its parent request, and the core's requests that must still be finished: a stop string, for example, is
    found in the text, which the core does not see."""

    parent: ParentRequest
    output: RequestOutput
    to_finish: list[str] = field(default_factory=list)
    reason: str = "stop"


class OutputProcessor:
    """Turns the core's outputs into those of users.

    Attributes:
        parents: the requests that are alive, by the id that their user gave them.
        states: their answers, by the id under which the core knows each.
    """

    def __init__(self) -> None:
        self.parents: dict[str, ParentRequest] = {}
        self.states: dict[str, RequestState] = {}

    def add(self, parent: ParentRequest) -> None:
        """Raises ValueError: an id is in use."""
        for request_id in (parent.request_id, *(state.request_id for state in parent.states)):
            state = self.states.get(request_id)
            if request_id in self.parents or (state is not None and not state.finished):
                raise ValueError(f"request id {request_id!r} is in use: give each request an id of its own")
        self.parents[parent.request_id] = parent
        for state in parent.states:
            self.states[state.request_id] = state

    def drop(self, request_id: str) -> ParentRequest | None:
        """Forget a request that has ended."""
        parent = self.parents.pop(request_id, None)
        for state in parent.states if parent else ():
            # The id of an answer that has ended may be used again.
            if self.states.get(state.request_id) is state:
                del self.states[state.request_id]
        return parent

    def process(self, new: EngineCoreOutput, now: float) -> ProcessedOutput | None:
        """What a step brought for an answer, as its user gets it. None: the answer has ended meanwhile."""
        state = self.states.get(new.request_id)
        if state is None or state.finished:
            return None
        parent = state.parent
        for name, value in new.extras.items():  # (one of n answers may say it for all)
            parent.extras[name] = parent.extras.get(name) or value
        if new.error is not None:
            others = [s.request_id for s in parent.states if not s.finished]
            return ProcessedOutput(parent, self.end(parent, "error", now, new.error), others, "error")
        for name in ("queued_time", "first_scheduled_time", "num_cached_tokens", "num_preemptions"):
            setattr(state.metrics, name, getattr(new, name))
        text, stop, token_ids = "", None, new.token_ids
        finish_reason, stop_reason = new.finish_reason, new.stop_reason
        if state.detokenizer:
            for i, token in enumerate(new.token_ids):
                last = i + 1 == len(new.token_ids)
                piece, stop = state.detokenizer.update(token, finish_reason if last else None)
                text += piece
                if stop is not None:
                    token_ids = new.token_ids[: i + 1]
                    break
        state.metrics.token_times += [now] * len(token_ids)
        to_finish = [new.request_id] if stop is not None and finish_reason is None else []
        if stop is not None:
            finish_reason, stop_reason = "stop", stop
        logprobs = new.logprobs[: len(token_ids)]
        completion = state.completion(token_ids, text, now, finish_reason, stop_reason, logprobs)
        return ProcessedOutput(parent, parent.output([completion]), to_finish)

    def end(self, parent: ParentRequest, reason: str, now: float, error: str | None = None) -> RequestOutput:
        """The last output of a request that was aborted, or failed: with the text that waited for a stop string."""
        ended = []
        for state in parent.states:
            if not state.finished:
                text = state.detokenizer.finish() if state.detokenizer else ""
                ended.append(state.completion([], text, now, reason))
        if not ended:  # all answers are complete, and their user has not heard of it yet
            ended = [CompletionOutput(0, [], "", parent.states[0].metrics, reason)]
        return parent.output(ended, error)
