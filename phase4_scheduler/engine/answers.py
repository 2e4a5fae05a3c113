"""What the engine keeps of a user's request while its answers are being written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from phase1_tokens_embeddings.tokens.tokenizer import BPETokenizer
from phase4_scheduler.engine.outputs import AnswerText, Completion, RequestMetrics, RequestOutput
from phase4_scheduler.engine.request import Request


class Answer:
    """What the engine keeps of one answer while it is being written."""

    def __init__(self, group: Group, index: int, request: Request) -> None:
        self.group, self.index, self.request = group, index, request
        params = group.params
        self.generator = params.make_generator(index)
        self.text = AnswerText(group.tokenizer, params) if group.tokenizer else None
        self.metrics = RequestMetrics(request.arrival_time)


class Group:
    """A user's request: one prompt, n answers."""

    def __init__(
        self,
        prompt: str | None,
        request: Request,
        tokenizer: BPETokenizer | None,
        on_output: Callable[[RequestOutput], None] | None,
    ) -> None:
        self.request_id, self.prompt, self.prompt_token_ids = (
            request.request_id,
            prompt,
            request.prompt_token_ids,
        )
        self.params, self.tokenizer, self.on_output = request.params, tokenizer, on_output
        self.unfinished = self.params.n
        self.prompt_logprobs: list[dict[int, float] | None] | None = None
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None] * request.num_prompt_tokens
        self.answers = [Answer(self, 0, request)]

    def output(
        self, completions: list[Completion], finished: bool, error: str | None = None
    ) -> RequestOutput:
        """These answers, or parts of answers, as the user gets them."""
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            completions,
            finished,
            self.prompt_logprobs,
            error,
        )


def accumulate(whole: dict[str, RequestOutput], new: RequestOutput) -> None:
    """Add a step's output to what a request has so far."""
    so_far = whole.get(new.request_id)
    if so_far is None:
        so_far = whole[new.request_id] = RequestOutput(
            new.request_id, new.prompt, new.prompt_token_ids, [], prompt_logprobs=new.prompt_logprobs
        )
    so_far.finished, so_far.error = new.finished, new.error
    for part in new.outputs:
        known = next((c for c in so_far.outputs if c.index == part.index), None)
        if known is None:
            own_lists = dict(token_ids=list(part.token_ids), logprobs=part.logprobs and list(part.logprobs))
            so_far.outputs.append(replace(part, **own_lists))
            so_far.outputs.sort(key=lambda c: c.index)
        else:
            known.token_ids += part.token_ids
            known.text += part.text
            known.finish_reason, known.stop_reason = part.finish_reason, part.stop_reason
            if part.logprobs is not None:
                known.logprobs += part.logprobs
