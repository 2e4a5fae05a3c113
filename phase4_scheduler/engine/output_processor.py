"""What belongs to a request while its answer is written, and how a step's tokens become outputs.

Source: vllm/v1/engine/output_processor.py, parallel_sampling.py and detokenizer.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from phase1_tokens_embeddings.tokens.tokenizer import BPETokenizer
from phase4_scheduler.engine.detokenizer import IncrementalDetokenizer
from phase4_scheduler.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import SchedulerOutput


@dataclass
class StepResult:
    """What a step computed and sampled, and what went wrong in it.

    Attributes:
        hidden: [N, d_model], one row for each token.
        first_row: by request id, where its rows begin. A request whose tokens could not be computed, or that has to
            restart, has none.
        token_ids, logprobs: by request id, what was sampled for the requests whose tokens are all computed.
        faults: requests that cannot go on, and why.
        to_restart: requests that have to compute all their tokens again, since others left blocks unfilled.
    """

    output: SchedulerOutput
    hidden: Tensor
    first_row: dict[str, int]
    token_ids: dict[str, int] = field(default_factory=dict)
    logprobs: dict[str, dict[int, float] | None] = field(default_factory=dict)
    faults: list[tuple[Request, str]] = field(default_factory=list)
    to_restart: list[Request] = field(default_factory=list)


class ParentRequest:
    """A request as its user sees it: one prompt, and n sequences that answer it."""

    def __init__(
        self,
        request: Request,
        prompt: str | None,
        tokenizer: BPETokenizer | None,
        on_output: Callable[[RequestOutput], None] | None,
    ) -> None:
        self.request_id, self.params = request.request_id, request.params
        self.prompt, self.prompt_token_ids = prompt, request.prompt_token_ids
        self.tokenizer, self.on_output = tokenizer, on_output
        self.num_unfinished = self.params.n
        self.prompt_logprobs: list[dict[int, float] | None] | None = None
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None] * request.num_prompt_tokens
        self.states = [RequestState(self, 0, request)]

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


class RequestState:
    """One sequence while it is written: what the scheduler's `Request` need not know of."""

    def __init__(self, parent: ParentRequest, index: int, request: Request) -> None:
        self.parent, self.index, self.request = parent, index, request
        self.generator = parent.params.make_generator(index)
        self.detokenizer = parent.tokenizer and IncrementalDetokenizer(parent.tokenizer, parent.params)
        self.metrics = RequestMetrics(request.arrival_time)

    def completion(
        self, token_ids: list[int], text: str, now: float, logprobs: dict[int, float] | None = None
    ) -> CompletionOutput:
        """What is new of this sequence. If its request has ended, so has it."""
        request = self.request
        if request.finish_reason is not None:
            self.metrics.finished_time = now
            self.metrics.num_preemptions = request.num_preemptions
            self.parent.num_unfinished -= 1
        return CompletionOutput(
            self.index,
            token_ids,
            text,
            self.metrics,
            request.finish_reason,
            request.stop_reason,
            None if logprobs is None else [logprobs],
        )


class OutputProcessor:
    """Turns tokens into text and outputs.

    Attributes:
        parents: the requests that are alive, by the id that their user gave them.
        states: their sequences, by the id that the scheduler knows them by.
    """

    def __init__(self) -> None:
        self.parents: dict[str, ParentRequest] = {}
        self.states: dict[str, RequestState] = {}
        self._telling = False
        self._interruption: BaseException | None = None

    def add(self, parent: ParentRequest) -> None:
        self.parents[parent.request_id] = parent
        self.states[parent.request_id] = parent.states[0]

    def next_sequence(self, request: Request) -> RequestState:
        """The next of the n sequences that answer a request's prompt."""
        parent = self.states[request.request_id].parent
        request_id = f"{parent.request_id}#{len(parent.states)}"
        while request_id in self.states:
            request_id += "#"
        return RequestState(parent, len(parent.states), request.sibling(request_id))

    def add_sequence(self, state: RequestState) -> None:
        state.parent.states.append(state)
        self.states[state.request.request_id] = state

    def living(self, parent: ParentRequest) -> list[RequestState]:
        """The sequences of a request that are still being written."""
        return [state for state in parent.states if self.states.get(state.request.request_id) is state]

    def process(
        self, step: StepResult, began: float, now: float
    ) -> tuple[list[tuple[ParentRequest, RequestOutput]], list[Request]]:
        """A step's tokens as outputs, one for each sequence that grew, with the requests they are for.

        Returns:
            the outputs, and the requests that a stop string ended: the scheduler, which sees no text, is to end them.
        """
        outputs, stopped = [], []
        for s in step.output.scheduled:
            request = s.request
            state = self.states.get(request.request_id)
            if state is None:
                continue  # it failed in this step
            if state.metrics.first_scheduled_time is None:
                state.metrics.first_scheduled_time = began
                state.metrics.num_cached_tokens = request.num_cached_tokens
            token = step.token_ids.get(request.request_id)
            if token is None:
                continue  # still in its prompt
            state.metrics.token_times.append(now)
            text = state.detokenizer.update(token, request) if state.detokenizer else ""
            if request.finish_reason is not None:
                del self.states[request.request_id]
                if not request.finished:
                    stopped.append(request)
            new = state.completion([token], text, now, step.logprobs[request.request_id])
            outputs.append((state.parent, state.parent.output([new])))
        return outputs, stopped

    def end(self, parent: ParentRequest, reason: str, now: float, error: str | None = None) -> RequestOutput:
        """The last output of a request that was aborted, or failed: with the text that waited for a stop string."""
        del self.parents[parent.request_id]
        ended = []
        for state in self.living(parent):
            del self.states[state.request.request_id]
            text = state.detokenizer.finish() if state.detokenizer else ""
            ended.append(state.completion([], text, now))
        if not ended:  # all sequences are complete, and their user has not heard of it yet
            ended = [CompletionOutput(0, [], "", parent.states[0].metrics, reason)]
        parent.num_unfinished = 0  # some of its sequences may not even have begun
        return parent.output(ended, error)

    # ------------------------------------------------------------------ functions that users gave

    def tell(self, parent: ParentRequest, output: RequestOutput) -> str | None:
        """Call a request's own `on_output`, if it has one. Returns what went wrong in it."""
        if parent.on_output is None:
            return None
        outer, self._telling = self._telling, True
        try:
            parent.on_output(output)
        except Exception as error:
            return f"on_output raised {type(error).__name__}: {error}"
        except BaseException as error:  # Ctrl-C or exit in there: the other requests get their outputs first
            self._interruption = error
        finally:
            self._telling = outer
        return None

    @contextmanager
    def interruptions_wait(self) -> Iterator[None]:
        """What an `on_output` raised to end the program is raised at the end of this.

        Raises:
            RuntimeError: an `on_output` is under way. It may add and abort requests, but start no step.
        """
        if self._telling:
            raise RuntimeError("a step is under way: on_output may add and abort requests, but start no step")
        yield
        self.raise_interruption()

    def raise_interruption(self) -> None:
        if self._interruption is not None and not self._telling:
            interruption, self._interruption = self._interruption, None
            raise interruption
