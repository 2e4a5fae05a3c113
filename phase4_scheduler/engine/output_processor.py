"""From the core's tokens to what users get: text, answers of several sequences, and the word that one is complete.

Source: vllm/v1/engine/output_processor.py, parallel_sampling.py and detokenizer.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from phase1_tokens_embeddings.tokens import Tokenizer
from phase4_scheduler.engine.core import EngineCoreOutput
from phase4_scheduler.engine.detokenizer import IncrementalDetokenizer
from phase4_scheduler.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput
from phase4_scheduler.engine.request import Request


class RequestState:
    """One sequence while it is written."""

    def __init__(self, parent: "ParentRequest", index: int) -> None:
        self.parent, self.index, self.finished = parent, index, False
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
        """What is new of this sequence."""
        if finish_reason is not None:
            self.finished = True
            self.metrics.finished_time = now
            self.parent.num_unfinished -= 1
        report = list(logprobs) if logprobs and logprobs[0] is not None else None
        return CompletionOutput(self.index, token_ids, text, self.metrics, finish_reason, stop_reason, report)


class ParentRequest:
    """A request as its user sees it: one prompt, and n sequences that answer it."""

    def __init__(
        self,
        request: Request,
        prompt: str | None,
        tokenizer: Tokenizer | None,
        on_output: Callable[[RequestOutput], None] | None,
    ) -> None:
        self.request_id, self.params = request.request_id, request.params
        self.prompt, self.prompt_token_ids = prompt, request.prompt_token_ids
        self.arrival_time = request.arrival_time
        self.tokenizer, self.on_output = tokenizer, on_output
        self.num_unfinished = self.params.n
        self.prompt_logprobs: list[dict[int, float] | None] | None = None
        self.states = [RequestState(self, 0)]  # the others come with their first tokens

    def output(self, completions: list[CompletionOutput], error: str | None = None) -> RequestOutput:
        """These completions, or what is new of them, as the user gets them."""
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            completions,
            self.num_unfinished == 0,
            self.prompt_logprobs,
            error,
        )


@dataclass
class ProcessedOutput:
    """An output for its user; whose it is; and whether it ends with a stop string, of which the core knows nothing."""

    parent: ParentRequest
    output: RequestOutput
    stopped_by_text: bool = False


class OutputProcessor:
    """Turns the core's outputs into those of users.

    Attributes:
        parents: the requests that are alive, by the id that their user gave them.
    """

    def __init__(self) -> None:
        self.parents: dict[str, ParentRequest] = {}

    def process(self, new: EngineCoreOutput, now: float) -> ProcessedOutput | None:
        """What a step brought for a sequence, as its user gets it. None: the sequence has ended meanwhile."""
        parent = self.parents.get(new.request_id)
        if parent is None:
            return None
        if new.error is not None:
            return ProcessedOutput(parent, self.end(parent, "error", now, new.error))
        while len(parent.states) <= new.index:
            parent.states.append(RequestState(parent, len(parent.states)))
        state = parent.states[new.index]
        if state.finished:
            return None
        parent.prompt_logprobs = parent.prompt_logprobs or new.prompt_logprobs
        state.metrics.queued_time = new.queued_time
        state.metrics.first_scheduled_time = new.first_scheduled_time
        state.metrics.num_cached_tokens = new.num_cached_tokens
        state.metrics.num_preemptions = new.num_preemptions
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
        stopped_by_text = stop is not None and finish_reason is None
        if stop is not None:
            finish_reason, stop_reason = "stop", stop
        logprobs = new.logprobs[: len(token_ids)]
        completion = state.completion(token_ids, text, now, finish_reason, stop_reason, logprobs)
        return ProcessedOutput(parent, parent.output([completion]), stopped_by_text)

    def end(self, parent: ParentRequest, reason: str, now: float, error: str | None = None) -> RequestOutput:
        """The last output of a request that was aborted, or failed: with the text that waited for a stop string."""
        ended = []
        for state in parent.states:
            if not state.finished:
                text = state.detokenizer.finish() if state.detokenizer else ""
                ended.append(state.completion([], text, now, reason))
        if not ended:  # all sequences are complete, and their user has not heard of it yet
            ended = [CompletionOutput(0, [], "", parent.states[0].metrics, reason)]
        parent.num_unfinished = 0  # some of its sequences may not even have begun
        return parent.output(ended, error)
