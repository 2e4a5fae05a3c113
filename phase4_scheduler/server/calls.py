"""One call that generates text: its prompts go to the engine, its answers come back, whole or as a stream.

`Completion` and `Chat` are kinds of it: they say what the prompts are and how an answer is written down.

Source: vllm/entrypoints/openai/completion/serving.py and chat_completion/serving.py.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import tee
from typing import Any, ClassVar

from phase1_tokens_embeddings.tokens import Tokenizer
from phase2_attention_kvcache.model.logprobs import TokenLogprobs
from phase4_scheduler.engine.outputs import CompletionOutput, RequestOutput
from phase4_scheduler.engine.request import Request
from phase4_scheduler.server.encoding import to_json
from phase4_scheduler.server.protocol import FINGERPRINT, NO_DETAILS, NOT_HERE, ApiError, Generation, usage

LOWEST_LOGPROB = -9999.0  # JSON has no minus infinity
Piece = tuple[dict[str, Any] | None, dict[str, Any], int]


class Call:
    """What the kinds of calls have in common.

    Args:
        server: the `Server` that got it (app.py).

    Attributes:
        PREFIX: of the id. WHOLE, CHUNK: `object` of an answer and of a piece of a stream. END: of a stream. USAGE: what
            usage in every piece has besides.
        prompts: token ids of each prompt. accepted: for each the request that the engine has taken.
    """

    PREFIX = WHOLE = CHUNK = ""
    END = b"data: [DONE]\n\n"
    USAGE: ClassVar[dict[str, Any]] = {}

    def __init__(self, server: Any, request: Generation) -> None:
        self.arrival_time = time.perf_counter()
        self.server, self.engine, self.request = server, server.engine, request
        self.tokenizer, self.limit = self.engine.tokenizer, self.engine.limits.max_model_len
        request.n = 1 if request.n is None else request.n
        self.request_id = f"{self.PREFIX}{request.request_id or uuid.uuid4().hex[:16]}"
        self.head = {
            "id": self.request_id,
            "created": int(time.time()),
            "model": request.model or server.name,
        }
        self.prompts: list[list[int]] = []
        self.accepted: list[Request] = []
        self.reported, self.report = None, iter(())  # log probabilities of a prompt, and their JSON

    async def prepare(self) -> None:
        """Tokenise and check everything, before a stream has begun and its status cannot be changed any more.

        Raises:
            ValueError, ApiError: it cannot be served.
        """
        raise NotImplementedError

    def choice(self, number: int, output: RequestOutput, part: CompletionOutput) -> dict[str, Any]:
        """A whole answer to the prompt of this number."""
        raise NotImplementedError

    def pieces(
        self, index: int, number: int, output: RequestOutput, part: CompletionOutput
    ) -> Iterator[Piece]:
        """What is new of answer `index` in a stream: choices (None: tokens that say nothing yet), fields beside each, new tokens."""
        raise NotImplementedError

    def beside(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """More fields of a whole answer."""
        return {}

    # ------------------------------------------------------------------ prompts

    async def read(self, prompts: Sequence[str | list[int]]) -> None:
        """Tokenise and cut prompts, one after the other."""
        for prompt in prompts:
            ids = await self.encode(prompt) if isinstance(prompt, str) else prompt
            self.prompts.append(self.truncated(ids))

    async def accept(
        self,
        max_tokens: int | None,
        logprobs: int | None,
        prompt_logprobs: int | None,
        name: str = "max_tokens",
    ) -> None:
        """Have the engine check a request for each prompt. `name`: of the field that says `max_tokens`."""
        r = self.request
        for ids in self.prompts:
            await asyncio.sleep(0)  # there may be a thousand: streams of others go on
            own = {"max_tokens": self.answer_room(ids, max_tokens, name)}
            own |= {"logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
            make = partial(r.params, self.server.defaults, **own)
            # A grammar is checked: that may take 0.3 s.
            params = make() if r.constraint() is None else await asyncio.to_thread(make)
            self.accepted.append(
                await self.engine.accept(self.request_id, ids, params, self.arrival_time, r.priority)
            )

    async def encode(self, text: str) -> list[int]:
        """Tokens of a prompt. A text that cannot fit the context is refused before the work of tokenising it."""
        if self.request.truncate_prompt_tokens is None and len(text) > self.limit * self.engine.longest_token:
            raise ApiError(
                f"the prompt has {len(text):,} characters, far more than a context of {self.limit:,} tokens holds: "
                "shorten it",
                "input_text",
            )
        ids = await self.engine.encode(text)
        return [*self.server.first_tokens, *ids] if self.request.add_special_tokens else ids

    def truncated(self, ids: list[int]) -> list[int]:
        """As many of a prompt's tokens as its client wants: the last ones, unless it says otherwise."""
        most = self.request.truncate_prompt_tokens
        if most is None:
            return ids
        if most > self.limit:
            raise ApiError(
                f"truncate_prompt_tokens is {most:,}: the context holds {self.limit:,}",
                "truncate_prompt_tokens",
            )
        most = self.limit - 1 if most == -1 else most
        return ids[:most] if self.request.truncation_side == "right" else ids[max(0, len(ids) - most) :]

    def answer_room(self, ids: Sequence[int], max_tokens: int | None, name: str) -> int:
        """Most tokens of the answer: what was asked for, or what the context leaves."""
        if len(ids) > self.limit:
            raise ApiError(
                f"the prompt has {len(ids):,} tokens, the context holds {self.limit:,}: shorten it",
                "input_tokens",
            )
        if max_tokens is not None and max_tokens > self.limit:
            raise ApiError(f"{name} is {max_tokens:,}: the context holds {self.limit:,}", name)
        room = self.limit - len(ids)
        wanted = min(room, self.server.defaults.get("max_tokens", room) if max_tokens is None else max_tokens)
        if wanted < 1:
            raise ApiError(f"max_tokens would be {wanted}: it must be at least 1", "max_tokens")
        return wanted

    # ------------------------------------------------------------------ answers

    async def outputs(self) -> list[RequestOutput]:
        """All outputs of each request as one."""
        whole: dict[int, RequestOutput] = {}
        async with aclosing(merge([self.engine.generate(request) for request in self.accepted])) as outputs:
            async for number, output in outputs:
                if whole.setdefault(number, output) is not output:
                    whole[number].add(output)
        return [whole[number] for number in range(len(self.accepted))]

    async def whole(self) -> dict[str, Any]:
        outputs = await self.outputs()
        parts = [(number, output, part) for number, output in enumerate(outputs) for part in output.outputs]
        written = sum(len(part.token_ids) for _, _, part in parts)
        return {
            **self.head,
            "object": self.WHOLE,
            "choices": ({"index": index, **self.choice(*each)} for index, each in enumerate(parts)),
            "usage": NO_DETAILS
            | usage(sum(map(len, self.prompts)), written, self.engine.cached(outputs[-1])),
            **NOT_HERE,
            "system_fingerprint": FINGERPRINT,
            **self.beside(outputs),
        }

    async def stream(self) -> AsyncIterator[dict[str, Any]]:
        """Chunks as they come: one for each answer that grew, at the end the usage."""
        head, options = {**self.head, "object": self.CHUNK}, self.request.stream_options
        include_usage = bool(options and options.include_usage)
        continuous = include_usage and bool(options.continuous_usage_stats)
        written, cached = [0] * (self.request.n * len(self.accepted)), None
        async with aclosing(merge([self.engine.generate(request) for request in self.accepted])) as outputs:
            async for number, output in outputs:
                cached = self.engine.cached(output) if cached is None else cached
                for part in output.outputs:
                    index = number * self.request.n + part.index
                    for choice, fields, num_tokens in self.pieces(index, number, output, part):
                        written[index] += num_tokens
                        if choice is None:
                            continue
                        chunk = {**head, "choices": [{"index": index, **choice}], **fields}
                        if continuous:
                            chunk["usage"] = usage(len(self.prompts[number]), written[index]) | self.USAGE
                        if choice["finish_reason"] is not None and not include_usage:
                            chunk["system_fingerprint"] = FINGERPRINT
                        yield chunk
        if include_usage:
            total = usage(sum(map(len, self.prompts)), sum(written), cached)
            yield {**head, "choices": [], "usage": total, "system_fingerprint": FINGERPRINT}

    # ------------------------------------------------------------------ log probabilities

    def spell(self, token: int) -> str:
        """How log probabilities name a token: by its text, or as "token_id:17"."""
        if self.request.return_tokens_as_token_ids:
            return f"token_id:{token}"
        return spelled(self.tokenizer, token)

    def described(self, logprobs: list[TokenLogprobs | None] | None) -> Iterator[bytes] | None:
        """Log probabilities of a prompt in vLLM's own form, as JSON for each token. The first token has none.

        The n answers to a prompt share them: they are encoded with the first.
        """
        if logprobs is None:
            return None

        def entries(found: TokenLogprobs) -> dict[str, Any]:
            ranks = found.ranks()
            return {
                str(token): {
                    "logprob": max(value, LOWEST_LOGPROB),
                    "rank": ranks[token],
                    "decoded_token": spelled(self.tokenizer, token),
                }
                for token, value in found.items()
            }

        if self.reported is not logprobs:
            self.reported, self.report = logprobs, (to_json(found and entries(found)) for found in logprobs)
        self.report, rows = tee(self.report)
        return rows


def spelled(tokenizer: Tokenizer, token: int) -> str:
    """A token as text; "" if it is no whole character."""
    try:
        return tokenizer.decode_bytes([token]).decode()
    except UnicodeDecodeError:
        return ""


async def merge(streams: list[AsyncIterator[RequestOutput]]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """Several streams as one, each output with the number of its stream."""
    queue: asyncio.Queue[tuple[int, RequestOutput] | Exception | None] = asyncio.Queue()

    async def drain(number: int, stream: AsyncIterator[RequestOutput]) -> None:
        try:
            async with aclosing(stream) as outputs:
                async for output in outputs:
                    raise_error(output)
                    queue.put_nowait((number, output))
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    if len(streams) == 1:  # without a queue between
        async with aclosing(streams[0]) as outputs:
            async for output in outputs:
                raise_error(output)
                yield 0, output
        return
    tasks: list[asyncio.Task[None]] = []
    try:
        for i, stream in enumerate(streams):
            tasks.append(asyncio.create_task(drain(i, stream)))
            await asyncio.sleep(0)  # there may be a thousand: between two of them the streams of others go on
        left = len(tasks)
        while left:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()


def raise_error(output: RequestOutput) -> None:
    if output.error is not None:
        raise ApiError(output.error, status=500, kind="InternalServerError")
