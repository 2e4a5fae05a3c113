"""POST /v1/completions: text or tokens in, their continuation out, whole or as a stream.

Source: vllm/entrypoints/openai/completion/serving.py.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from phase1_tokens_embeddings.tokens import Tokenizer
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine.outputs import CompletionOutput, RequestOutput
from phase4_scheduler.engine.request import Request
from phase4_scheduler.server.async_engine import AsyncEngine
from phase4_scheduler.server.protocol import (
    FINGERPRINT,
    NOT_HERE,
    ApiError,
    CompletionRequest,
    Generation,
    full_usage,
    usage,
)

LOWEST_LOGPROB = -9999.0  # JSON has no minus infinity


class Completion:
    """One call of /v1/completions: its prompts, and how its answers are written down."""

    def __init__(self, engine: AsyncEngine, request: CompletionRequest, model: str) -> None:
        self.arrival_time = time.perf_counter()
        self.engine, self.request = engine, request
        self.request_id = f"cmpl-{request.request_id or uuid.uuid4().hex[:16]}"
        self.head = {"id": self.request_id, "object": "text_completion", "created": int(time.time())}
        self.head["model"] = model

    async def prepare(self) -> None:
        """Tokenise and check everything, before a stream has begun and its status cannot be changed any more.

        Raises:
            ValueError, ApiError: it cannot be served.
        """
        r, limit = self.request, self.engine.limits.max_model_len
        prompts = r.prompt
        if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
            prompts = [prompts]
        if not prompts or [] in prompts:
            raise ApiError("the prompt is empty: give at least one token")
        self.prompts: list[tuple[str | None, list[int]]] = []
        for prompt in prompts:
            text = prompt if isinstance(prompt, str) else None
            ids = prompt if text is None else await encode(self.engine, text, limit, r.truncate_prompt_tokens)
            self.prompts.append((text, truncated(ids, r, limit)))
        self.accepted: list[Request] = []
        for _, ids in self.prompts:
            max_tokens = 1 if r.echo and r.max_tokens == 0 else r.max_tokens
            prompt_logprobs = r.prompt_logprobs
            if prompt_logprobs is None and r.echo:
                prompt_logprobs = r.logprobs
            params = await make_params(r, answer_room(ids, max_tokens, limit), r.logprobs, prompt_logprobs)
            self.accepted.append(
                await self.engine.accept(self.request_id, ids, params, self.arrival_time, r.priority)
            )

    # ------------------------------------------------------------------ whole answers

    async def whole(self) -> dict[str, Any]:
        tasks = [asyncio.create_task(collect(self.engine.generate(a))) for a in self.accepted]
        try:
            outputs = await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # if one failed, the others are of no use
                task.cancel()
        choices = []
        for (text, ids), output in zip(self.prompts, outputs, strict=True):
            raise_error(output)
            for part in output.outputs:
                choices.append({"index": len(choices), **self.choice(text, ids, output, part)})
        written = sum(len(part.token_ids) for output in outputs for part in output.outputs)
        return {
            **self.head,
            "choices": choices,
            "usage": full_usage(
                sum(len(ids) for _, ids in self.prompts), written, self.engine.cached(outputs[-1])
            ),
            **NOT_HERE,
            "system_fingerprint": FINGERPRINT,
        }

    def choice(
        self, text: str | None, ids: list[int], output: RequestOutput, part: CompletionOutput
    ) -> dict[str, Any]:
        r, tokenizer = self.request, self.engine.tokenizer
        token_ids, logprobs, answer = list(part.token_ids), part.logprobs, part.text
        if r.echo:
            prompt = "" if r.return_token_ids else tokenizer.decode(ids) if text is None else text
            if r.max_tokens == 0:
                token_ids, logprobs, answer = [], [], ""
            token_ids, answer = ids + token_ids, prompt + answer
            logprobs = None if r.logprobs is None else (output.prompt_logprobs or []) + (logprobs or [])
        return {
            "text": answer,
            "logprobs": completion_logprobs(speller(tokenizer, r), token_ids, logprobs, r.logprobs),
            "finish_reason": part.finish_reason,
            "stop_reason": part.stop_reason,
            "token_ids": list(part.token_ids) if r.return_token_ids else None,
            "prompt_logprobs": described(tokenizer, output.prompt_logprobs),
            "prompt_token_ids": ids if r.return_token_ids else None,
            "routed_experts": None,
        }

    # ------------------------------------------------------------------ streams

    async def stream(self) -> AsyncIterator[dict[str, Any]]:
        """Chunks, as they come: one for each answer that grew."""
        r, n = self.request, self.request.n
        options = r.stream_options
        written = [0] * (n * len(self.prompts))
        offsets = [0] * len(written)
        cached = None
        include_usage = bool(options and options.include_usage)
        async with aclosing(merge([self.engine.generate(a) for a in self.accepted])) as outputs:
            async for number, output in outputs:
                raise_error(output)
                text, ids = self.prompts[number]
                for part in output.outputs:
                    index = number * n + part.index
                    first = written[index] == 0
                    choice = self.chunk_choice(index, text, ids, output, part, first, offsets)
                    written[index] += len(part.token_ids)
                    cached = self.engine.cached(output)
                    chunk = {**self.head, "choices": [choice]}
                    if include_usage and options.continuous_usage_stats:
                        chunk["usage"] = usage(len(ids), written[index])
                    if part.finish_reason is not None and not include_usage:
                        chunk["system_fingerprint"] = FINGERPRINT
                    yield chunk
        if include_usage:
            total = usage(sum(len(ids) for _, ids in self.prompts), sum(written), cached)
            yield {**self.head, "choices": [], "usage": total, "system_fingerprint": FINGERPRINT}

    def chunk_choice(
        self,
        index: int,
        text: str | None,
        ids: list[int],
        output: RequestOutput,
        part: CompletionOutput,
        first: bool,
        offsets: list[int],
    ) -> dict[str, Any]:
        r, tokenizer = self.request, self.engine.tokenizer
        whole = self.choice(text, ids, output, part) if r.echo and first else None
        token_ids = list(part.token_ids)
        if whole is None:
            logprobs = completion_logprobs(
                speller(tokenizer, r), token_ids, part.logprobs, r.logprobs, offsets[index]
            )
        else:
            logprobs = whole["logprobs"]
        if logprobs and logprobs["tokens"]:
            offsets[index] = logprobs["text_offset"][-1] + len(logprobs["tokens"][-1])
        return {
            "index": index,
            "text": part.text if whole is None else whole["text"],
            "logprobs": logprobs,
            "finish_reason": part.finish_reason,
            "stop_reason": part.stop_reason,
            "prompt_token_ids": ids if first and (r.return_token_ids or r.echo) else None,
            "token_ids": token_ids if r.return_token_ids else None,
        }


# ---------------------------------------------------------------------- shared with chat


def truncated(ids: list[int], request: Generation, limit: int) -> list[int]:
    """As many of a prompt's tokens as its client wants: the last ones, unless it says otherwise.

    Raises:
        ApiError: it wants more than the context holds.
    """
    most = request.truncate_prompt_tokens
    if most is None:
        return ids
    if most > limit:
        raise ApiError(
            f"truncate_prompt_tokens is {most:,}: the context holds {limit:,}", "truncate_prompt_tokens"
        )
    most = limit - 1 if most == -1 else most
    return ids[:most] if request.truncation_side == "right" else ids[max(0, len(ids) - most) :]


async def make_params(request: Generation, *limits: int | None) -> SamplingParams:
    """`Generation.params`, in a thread where a grammar is checked: that may take 0.3 s."""
    if request.constraint() is None:
        return request.params(*limits)
    return await asyncio.to_thread(request.params, *limits)


async def encode(engine: AsyncEngine, text: str, limit: int, truncate: int | None = None) -> list[int]:
    """Tokens of a prompt. A text that cannot fit the context is refused before the work of tokenising it."""
    if truncate is None and len(text) > limit * engine.longest_token:
        raise ApiError(
            f"the prompt has {len(text):,} characters, far more than a context of {limit:,} tokens holds: shorten it",
            "input_text",
        )
    return await engine.encode(text)


def answer_room(ids: Sequence[int], max_tokens: int | None, limit: int, name: str = "max_tokens") -> int:
    """Most tokens of the answer: what was asked for, or what the context leaves.

    Raises:
        ApiError: the prompt leaves no room, or the wish is out of range.
    """
    if len(ids) > limit:
        raise ApiError(
            f"the prompt has {len(ids):,} tokens, the context holds {limit:,}: shorten it", "input_tokens"
        )
    room = limit - len(ids)
    if max_tokens is not None and max_tokens > limit:
        raise ApiError(f"{name} is {max_tokens:,}: the context holds {limit:,}", name)
    wanted = room if max_tokens is None else min(max_tokens, room)
    if wanted < 1:
        raise ApiError(f"max_tokens would be {wanted}: it must be at least 1", "max_tokens")
    return wanted


async def collect(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    whole: RequestOutput | None = None
    async with aclosing(outputs):
        async for output in outputs:
            if whole is None:
                whole = output
            else:
                whole.add(output)
    return whole


async def merge(streams: list[AsyncIterator[RequestOutput]]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """Several streams as one, each output with the number of its stream."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as outputs:
            async for output in outputs:
                yield 0, output
        return
    queue: asyncio.Queue = asyncio.Queue()

    async def drain(number: int, stream: AsyncIterator[RequestOutput]) -> None:
        try:
            async with aclosing(stream) as outputs:
                async for output in outputs:
                    queue.put_nowait((number, output))
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(drain(i, stream)) for i, stream in enumerate(streams)]
    try:
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


def completion_logprobs(
    spell: Callable[[int], str],
    token_ids: Sequence[int],
    logprobs: Sequence[dict[int, float] | None] | None,
    wanted: int | None,
    offset: int = 0,
) -> dict[str, Any] | None:
    """Log probabilities in the form of /v1/completions. A token without any, as the first of a prompt, has null."""
    if wanted is None:
        return None
    tokens = [spell(token) for token in token_ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "text_offset": offsets,
        "token_logprobs": [
            None if found is None else max(found[token], LOWEST_LOGPROB)
            for token, found in zip(token_ids, logprobs, strict=True)
        ],
        "tokens": tokens,
        "top_logprobs": [
            None if found is None else {
                spell(token): max(value, LOWEST_LOGPROB)
                for token, value in list(found.items())[: wanted + 1]
            }
            for found in logprobs
        ],
    }  # fmt: skip


def spelled(tokenizer: Tokenizer, token: int) -> str:
    """A token as text; "" if it is no whole character."""
    try:
        return tokenizer.decode_bytes([token]).decode()
    except UnicodeDecodeError:
        return ""


def speller(tokenizer: Tokenizer, request: Generation) -> Callable[[int], str]:
    """How log probabilities name a token: by its text, or as "token_id:17"."""
    if request.return_tokens_as_token_ids:
        return lambda token: f"token_id:{token}"
    return lambda token: spelled(tokenizer, token)


def described(
    tokenizer: Tokenizer, logprobs: list[dict[int, float] | None] | None
) -> list[dict[str, Any] | None] | None:
    """Log probabilities of a prompt in vLLM's own form."""
    if logprobs is None:
        return None
    entries: list[dict[str, Any] | None] = []
    for found in logprobs:
        ranks = found.ranks() if found else {}
        entries.append(
            found
            and {
                str(token): {
                    "logprob": max(value, LOWEST_LOGPROB),
                    "rank": ranks[token],
                    "decoded_token": spelled(tokenizer, token),
                }
                for token, value in found.items()
            }
        )
    return entries
