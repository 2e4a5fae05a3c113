"""POST /v1/chat/completions: messages in, the next message out.

The model's chat template (`chat/chat_template.py`, Phase 1) writes them down as one text.

Source: vllm/entrypoints/openai/chat_completion/serving.py.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from phase1_tokens_embeddings.chat import ChatTemplate
from phase4_scheduler.engine.outputs import CompletionOutput
from phase4_scheduler.server.async_engine import AsyncEngine
from phase4_scheduler.server.completions import (
    LOWEST_LOGPROB,
    answer_room,
    collect,
    described,
    encode,
    make_params,
    raise_error,
    spelled,
    speller,
    truncated,
)
from phase4_scheduler.server.protocol import (
    FINGERPRINT,
    NOT_HERE,
    ApiError,
    ChatCompletionRequest,
    ChatMessage,
    TokenizeRequest,
    full_usage,
    usage,
)
from phase4_scheduler.server.tools import NamedTool, ToolCallReader, is_json, read_calls


def plain_message(message: ChatMessage) -> dict[str, Any]:
    """A message as templates expect it. Content in parts becomes one text."""
    content = message.content
    if isinstance(content, list):
        wrong = [
            part for part in content if part.get("type") != "text" or not isinstance(part.get("text"), str)
        ]
        if wrong:
            raise ApiError(f"a part of type {wrong[0].get('type')!r}: this model reads text only")
        content = "\n".join(part["text"] for part in content)
    role = "system" if message.role == "developer" else message.role  # OpenAI's newer word for the same
    plain = message.model_dump(exclude_none=True) | {"role": role, "content": content or ""}
    for call in plain.get("tool_calls", ()):  # templates write the arguments down by themselves
        if is_json(text := call["function"]["arguments"]):
            call["function"]["arguments"] = json.loads(text)
    return plain


async def rendered(template: ChatTemplate, request: ChatCompletionRequest | TokenizeRequest) -> str:
    """The conversation as one text. A thread renders it: a template is a program, and many messages take it long.

    Raises:
        ApiError: a message that is not text, or that the template refuses.
    """

    def render() -> str:
        plain = [plain_message(message) for message in request.messages]
        tools = [tool.model_dump(exclude_none=True) for tool in getattr(request, "tools", None) or ()]
        prompts, goes_on = request.add_generation_prompt, request.continue_final_message
        return template.render(plain, prompts, goes_on, tools=tools or None)

    try:
        return await asyncio.to_thread(render)
    except ValueError as error:
        raise ApiError(str(error)) from None


NO_TOOLS = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))


class Chat:
    """One call of /v1/chat/completions."""

    def __init__(
        self,
        engine: AsyncEngine,
        request: ChatCompletionRequest,
        model: str,
        template: ChatTemplate | None,
        tool_call_parser: str | None = None,
    ) -> None:
        self.arrival_time = time.perf_counter()
        self.engine, self.request, self.template = engine, request, template
        self.tool_call_parser = tool_call_parser
        self.request_id = f"chatcmpl-{request.request_id or uuid.uuid4().hex[:16]}"
        request.n = 1 if request.n is None else request.n
        self.head = {"id": self.request_id, "created": int(time.time()), "model": model}

    async def prepare(self) -> None:
        """As `Completion.prepare`."""
        r, limit = self.request, self.engine.limits.max_model_len
        if self.template is None:
            raise ApiError("this model has no chat template: use /v1/completions")
        if r.tool_choice == "auto":
            if self.tool_call_parser is None:
                raise ApiError(
                    'the tool_choice "auto" needs a server with --enable-auto-tool-choice and --tool-call-parser'
                )
            r.skip_special_tokens = False  # the tags are special tokens of some models
        self.text = await rendered(self.template, r)
        ids = await encode(self.engine, self.text, limit, r.truncate_prompt_tokens)
        self.prompt = truncated(ids, r, limit)
        max_tokens = r.max_tokens if r.max_completion_tokens is None else r.max_completion_tokens
        name = "max_tokens" if r.max_completion_tokens is None else "max_completion_tokens"
        prompt_logprobs = r.top_logprobs if r.prompt_logprobs is None and r.echo else r.prompt_logprobs
        room = answer_room(self.prompt, max_tokens, limit, name)
        params = await make_params(r, room, (r.top_logprobs or 0) if r.logprobs else None, prompt_logprobs)
        self.accepted = await self.engine.accept(
            self.request_id, self.prompt, params, self.arrival_time, r.priority
        )
        last = r.messages[-1]
        self.role = "assistant" if r.add_generation_prompt else last.role
        # What an answer repeats first, if its client wants that: the message that it goes on with.
        self.echoed = plain_message(last)["content"] if r.echo and last.role == self.role else ""

    def logprobs(self, part: CompletionOutput) -> dict[str, Any] | None:
        if not self.request.logprobs:
            return None
        spell, wanted = speller(self.engine.tokenizer, self.request), self.request.top_logprobs or 0
        content = []
        for token, found in zip(part.token_ids, part.logprobs, strict=True):
            entries = [_entry(spell, t, value) for t, value in list(found.items())[:wanted]]
            whole = list(spelled(self.engine.tokenizer, token).encode())  # also where it is named by its id
            content.append(_entry(spell, token, found[token]) | {"bytes": whole, "top_logprobs": entries})
        return {"content": content}

    def tool_call_reader(self) -> ToolCallReader | None:
        """What finds the tool calls in an answer; None: it has none."""
        choice = self.request.tool_choice
        if choice in (None, "none"):
            return None
        named = choice.function.name if isinstance(choice, NamedTool) else None
        return ToolCallReader(named, tagged=choice == "auto")

    def message(self, part: CompletionOutput) -> dict[str, Any]:
        """A whole answer."""
        message = {"role": self.role, "content": self.echoed + part.text, **NO_TOOLS}
        if reader := self.tool_call_reader():
            content, calls = read_calls(reader, part.text)
            if calls:
                message |= {"content": content or None, "tool_calls": calls}
        return message

    def finish_reason(self, part: CompletionOutput, called: bool) -> str | None:
        """As OpenAI has it: with a tool that the client has named an ordinary end."""
        forced = self.request.tool_choice == "required" and part.finish_reason == "stop"
        auto = self.request.tool_choice == "auto" and called and part.finish_reason is not None
        return "tool_calls" if forced or auto else part.finish_reason

    async def whole(self) -> dict[str, Any]:
        output = await collect(self.engine.generate(self.accepted))
        raise_error(output)
        r = self.request
        choices = [
            {
                "index": part.index,
                "message": (message := self.message(part)),
                "logprobs": self.logprobs(part),
                "finish_reason": self.finish_reason(part, "tool_calls" in message),
                "stop_reason": part.stop_reason,
                "token_ids": list(part.token_ids) if r.return_token_ids else None,
                "routed_experts": None,
            }
            for part in output.outputs
        ]
        written = sum(len(part.token_ids) for part in output.outputs)
        return {
            **self.head,
            "object": "chat.completion",
            "choices": choices,
            "usage": full_usage(len(self.prompt), written, self.engine.cached(output)),
            "prompt_text": self.text if r.return_prompt_text else None,
            **NOT_HERE,
            "system_fingerprint": FINGERPRINT,
            "prompt_logprobs": described(self.engine.tokenizer, output.prompt_logprobs),
            "prompt_token_ids": self.prompt if r.return_token_ids else None,
        }

    async def stream(self) -> AsyncIterator[dict[str, Any]]:
        """First a chunk a choice with the role, then the text, at the end the usage."""
        r, head = self.request, {**self.head, "object": "chat.completion.chunk"}
        options = r.stream_options
        include_usage = bool(options and options.include_usage)
        continuous = include_usage and bool(options.continuous_usage_stats)
        written, cached = [0] * r.n, None
        readers = [self.tool_call_reader() for _ in range(r.n)]
        begun = False
        async with aclosing(self.engine.generate(self.accepted)) as outputs:
            async for output in outputs:
                raise_error(output)
                if not begun:
                    begun = True
                    for index in range(r.n):
                        delta = {"role": self.role, "content": ""}
                        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                        chunk = {**head, "choices": [choice]}
                        chunk["prompt_token_ids"] = self.prompt if r.return_token_ids else None
                        chunk["prompt_text"] = self.text if r.return_prompt_text else None
                        if continuous:
                            chunk["usage"] = usage(len(self.prompt), 0) | {"completion_tokens_details": None}
                        yield chunk
                    for index in range(r.n if self.echoed else 0):
                        delta = {"content": self.echoed}
                        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                        yield {**head, "choices": [choice]}
                for part in output.outputs:
                    written[part.index] += len(part.token_ids)
                    cached = self.engine.cached(output)
                    delta, reader = {"content": part.text}, readers[part.index]
                    if reader is not None:
                        content, calls = reader.push(part.text, part.finish_reason is not None)
                        delta = ({"content": content} if content else {}) | (
                            {"tool_calls": calls} if calls else {}
                        )
                        if not (delta or part.finish_reason or r.logprobs or r.return_token_ids):
                            continue
                    choice = {
                        "index": part.index,
                        "delta": delta,
                        "logprobs": self.logprobs(part),
                        "finish_reason": self.finish_reason(part, bool(reader and reader.num_calls)),
                        "token_ids": list(part.token_ids) if r.return_token_ids else None,
                    }
                    if part.finish_reason is not None:
                        choice["stop_reason"] = part.stop_reason
                    chunk = {**head, "choices": [choice]}
                    if continuous:
                        now = usage(len(self.prompt), written[part.index])
                        chunk["usage"] = now | {"completion_tokens_details": None}
                    if part.finish_reason is not None and not include_usage:
                        chunk["system_fingerprint"] = FINGERPRINT
                    yield chunk
        if include_usage:
            total = usage(len(self.prompt), sum(written), cached)
            yield {**head, "choices": [], "usage": total, "system_fingerprint": FINGERPRINT}


def _entry(spell: Callable[[int], str], token: int, logprob: float) -> dict[str, Any]:
    text = spell(token)
    return {"token": text, "logprob": max(logprob, LOWEST_LOGPROB), "bytes": list(text.encode())}
