"""POST /v1/completions: text or tokens in, their continuation out.

Source: vllm/entrypoints/openai/completion/serving.py.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from phase4_scheduler.engine.outputs import CompletionOutput, RequestOutput
from phase4_scheduler.server.calls import LOWEST_LOGPROB, Call, Piece
from phase4_scheduler.server.protocol import ApiError


class Completion(Call):
    """One call of /v1/completions."""

    PREFIX, WHOLE, CHUNK = "cmpl-", "text_completion", "text_completion"

    async def prepare(self) -> None:
        r = self.request
        is_one = isinstance(r.prompt, str) or (r.prompt and isinstance(r.prompt[0], int))
        given = [r.prompt] if is_one else r.prompt
        if not given or [] in given:
            raise ApiError("the prompt is empty: give at least one token")
        self.texts = [prompt if isinstance(prompt, str) else None for prompt in given]
        self.offsets: dict[int, int] = defaultdict(int)  # by answer: characters before its next token
        self.begun: set[int] = set()  # answers of which the stream has said something
        await self.read(given)
        max_tokens = 1 if r.echo and r.max_tokens == 0 else r.max_tokens
        prompt_logprobs = r.logprobs if r.prompt_logprobs is None and r.echo else r.prompt_logprobs
        await self.accept(max_tokens, r.logprobs, prompt_logprobs)

    def choice(self, number: int, output: RequestOutput, part: CompletionOutput) -> dict[str, Any]:
        r, ids, text = self.request, self.prompts[number], self.texts[number]
        token_ids, logprobs, answer = list(part.token_ids), part.logprobs, part.text
        if r.echo:
            prompt = "" if r.return_token_ids else self.tokenizer.decode(ids) if text is None else text
            if r.max_tokens == 0:
                token_ids, logprobs, answer = [], [], ""
            token_ids, answer = ids + token_ids, prompt + answer
            logprobs = None if r.logprobs is None else (output.prompt_logprobs or []) + (logprobs or [])
        return {
            "text": answer,
            "logprobs": self.logprobs(token_ids, logprobs),
            "finish_reason": part.finish_reason,
            "stop_reason": part.stop_reason,
            "token_ids": list(part.token_ids) if r.return_token_ids else None,
            "prompt_logprobs": self.described(output.prompt_logprobs),
            "prompt_token_ids": ids if r.return_token_ids else None,
            "routed_experts": None,
        }

    def pieces(
        self, index: int, number: int, output: RequestOutput, part: CompletionOutput
    ) -> Iterator[Piece]:
        r, first = self.request, index not in self.begun
        self.begun.add(index)
        if r.echo and first:
            whole = self.choice(number, output, part)
            text, logprobs = whole["text"], whole["logprobs"]
        else:
            text, logprobs = part.text, self.logprobs(part.token_ids, part.logprobs, self.offsets[index])
        if logprobs and logprobs["tokens"]:
            self.offsets[index] = logprobs["text_offset"][-1] + len(logprobs["tokens"][-1])
        choice = {
            "text": text,
            "logprobs": logprobs,
            "finish_reason": part.finish_reason,
            "stop_reason": part.stop_reason,
            "prompt_token_ids": self.prompts[number] if first and (r.return_token_ids or r.echo) else None,
            "token_ids": list(part.token_ids) if r.return_token_ids else None,
        }
        yield choice, {}, len(part.token_ids)

    def logprobs(
        self, token_ids: Sequence[int], logprobs: Sequence[dict[int, float] | None] | None, offset: int = 0
    ) -> dict[str, Any] | None:
        """A token without log probabilities, as the first of a prompt, has null. `offset`: characters before these."""
        wanted = self.request.logprobs
        if wanted is None:
            return None
        tokens = [self.spell(token) for token in token_ids]
        offsets = list(accumulate(map(len, tokens), initial=offset))[:-1]
        return {
            "text_offset": offsets,
            "token_logprobs": [
                None if found is None else max(found[token], LOWEST_LOGPROB)
                for token, found in zip(token_ids, logprobs, strict=True)
            ],
            "tokens": tokens,
            "top_logprobs": (
                None if found is None else {
                    self.spell(token): max(value, LOWEST_LOGPROB)
                    for token, value in list(found.items())[: wanted + 1]
                }
                for found in logprobs
            ),
        }  # fmt: skip
