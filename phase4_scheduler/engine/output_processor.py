"""Turns the core's tokens into the output of a user's request: streamed text, stop strings, and n answers to one prompt.

For a prompt with n answers, the core gets n requests, which share the prompt's blocks through the prefix cache.

Source: vllm/v1/engine/output_processor.py, parallel_sampling.py and detokenizer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from phase1_tokens_embeddings.tokens import StopStrings, StreamDecoder, Tokenizer
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.engine.core import EngineCoreOutput
from phase4_scheduler.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput
from phase4_scheduler.engine.request import Request


class IncrementalDetokenizer:
    """Turns an answer's tokens into text that can no longer change, up to a stop string."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._decoder = StreamDecoder(tokenizer, params.skip_special_tokens, continues=True)
        self.stops = StopStrings(params.stop, params.include_stop_str_in_output)
        self._vocab_size, self._params = tokenizer.vocab_size, params
        self._num_tokens = 0

    def push(self, token_ids: Sequence[int], finish_reason: str | None = None) -> tuple[str, int]:
        """Add tokens, and the reason if the answer ends with them.

        Returns:
            the text that can no longer change, and how many of the tokens belong to the answer: a stop string may end it earlier.
        """
        text = ""
        for i, token in enumerate(token_ids, 1):
            self._num_tokens += 1
            stops = finish_reason == "stop" and i == len(token_ids)  # a stop token's own text is not shown
            known = token < self._vocab_size  # tables are often padded: other tokens stand for no text
            if known and (not stops or self._params.include_stop_str_in_output):
                text += self._release(self._decoder.push(token))
            if self.stops.found is not None:
                return text, i
        return text + (self.finish() if finish_reason is not None else ""), len(token_ids)

    def finish(self) -> str:
        """The answer has no more tokens: return the text that was held back."""
        return self._release(self._decoder.finish()) + self.stops.finish()

    def _release(self, new: str) -> str:
        return self.stops.push(new, counts=self._num_tokens > self._params.min_tokens)


class RequestState:
    """One answer while it is generated.

    Attributes:
        request_id: the id of this answer in the core.
        index: its number among the answers of its parent request.
    """

    def __init__(self, parent: ParentRequest, request_id: str, index: int) -> None:
        self.parent, self.request_id, self.index, self.finished = parent, request_id, index, False

    @cached_property
    def metrics(self) -> RequestMetrics:
        return RequestMetrics(self.parent.arrival_time)

    @cached_property
    def detokenizer(self) -> IncrementalDetokenizer | None:
        """Created for the first token and deleted after the last: of thousands of answers, few are generated at a time."""
        return self.parent.tokenizer and IncrementalDetokenizer(self.parent.tokenizer, self.parent.params)

    def end(self, now: float) -> None:
        """The answer has no more tokens."""
        self.__dict__.pop("detokenizer", None)
        self.finished, self.metrics.finished_time = True, now
        self.parent.num_unfinished -= 1


class ParentRequest:
    """A request as its user sees it: one prompt and n answers.

    Attributes:
        extras: values from extensions of the core, by name.
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
        self._request, self.num_unfinished = request, self.params.n
        self.extras: dict[str, Any] = {}
        self.states = [RequestState(self, request.answer_id(i), i) for i in range(self.params.n)]

    def requests(self) -> Iterator[Request]:
        """The core's requests, one per answer. Answer i of a request with a seed has seed + i, as in vLLM."""
        n = self.params.n
        return iter([self._request]) if n == 1 else map(self._request.for_answer, range(n))

    def output(self, completions: list[CompletionOutput], error: str | None = None) -> RequestOutput:
        """These completions, or their new parts, as the user receives them."""
        finished = self.num_unfinished == 0
        return RequestOutput(
            self.request_id, self.prompt, self.prompt_token_ids, completions, finished, error, self.extras
        )


@dataclass
class ProcessedOutput:
    """An output for a user, its parent request, and the core's requests that must still be finished. A stop string, for example,
    is found in the text, which the core does not see."""

    parent: ParentRequest
    output: RequestOutput
    to_finish: list[str] = field(default_factory=list)
    reason: str = "stop"


class OutputProcessor:
    """Turns the core's outputs into those of users.

    Attributes:
        parents: the unfinished requests, by the id that their user gave them.
        states: their answers, by the id of each in the core.
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
        """Remove a request that has ended. Returns it, unless it was removed before."""
        parent = self.parents.pop(request_id, None)
        for state in parent.states if parent else ():
            # The id of an answer that has ended may be used again.
            if self.states.get(state.request_id) is state:
                del self.states[state.request_id]
        return parent

    def process(self, new: EngineCoreOutput, now: float) -> ProcessedOutput | None:
        """The output of a step for an answer, as its user receives it. None: the answer has ended meanwhile."""
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
        text, count, to_finish = "", len(new.token_ids), []
        finish_reason, stop_reason = new.finish_reason, new.stop_reason
        if state.detokenizer:
            text, count = state.detokenizer.push(new.token_ids, finish_reason)
            if state.detokenizer.stops.found is not None:
                to_finish = [new.request_id] if finish_reason is None else []
                finish_reason, stop_reason = "stop", state.detokenizer.stops.found
        state.metrics.token_times += [now] * count
        if finish_reason is not None:
            state.end(now)
        logprobs = new.logprobs[:count] if new.logprobs and new.logprobs[0] is not None else None
        ends = (state.metrics, finish_reason, stop_reason)
        completion = CompletionOutput(state.index, new.token_ids[:count], text, *ends, logprobs)
        return ProcessedOutput(parent, parent.output([completion]), to_finish)

    def end(self, parent: ParentRequest, reason: str, now: float, error: str | None = None) -> RequestOutput:
        """The last output of a request that was aborted or failed, with the text that was held back for a stop string."""
        ended = []
        for state in parent.states:
            if not state.finished:
                text = state.detokenizer.finish() if state.detokenizer else ""
                state.end(now)
                ended.append(CompletionOutput(state.index, [], text, state.metrics, reason))
        if not ended:  # all answers are complete, and their user has not heard of it yet
            ended = [CompletionOutput(0, [], "", parent.states[0].metrics, reason)]
        return parent.output(ended, error)
