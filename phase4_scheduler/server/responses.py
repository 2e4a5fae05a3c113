"""POST /v1/responses: OpenAI's newer form of a chat. Input and instructions in, one message out, in typed events if streamed.

It is a chat in other words: `ResponsesRequest.as_chat` turns the question around, `Response` the answer. Nothing is stored, so
a conversation is sent as a whole each time.

Source: vllm/entrypoints/openai/responses/serving.py; OpenAI's API reference, "Responses".
"""

import itertools
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

from labkit.foreign import visible
from phase4_scheduler.engine.outputs import CompletionOutput, RequestOutput
from phase4_scheduler.server.bodies import validated
from phase4_scheduler.server.calls import raise_error
from phase4_scheduler.server.chat import Chat
from phase4_scheduler.server.protocol import (
    WRONG_TYPE,
    ApiError,
    ChatCompletionRequest,
    ChatMessage,
    Generation,
    Items,
)

LOGPROBS = "message.output_text.logprobs"
# Fields that an answer repeats, and those that are the same in all of ours.
OF_PARAMS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
NO_REASONING = dict.fromkeys(("effort", "summary", "generate_summary", "context", "mode"))
OF_REQUEST = ("instructions", "metadata", "truncation", "user")
ALWAYS = dict.fromkeys(
    ("max_tool_calls", "previous_response_id", "prompt", "kv_transfer_params", "ec_transfer_params",
     "input_messages", "output_messages")
) | {"object": "response", "parallel_tool_calls": True, "tool_choice": "none", "tools": [], "background": False,
     "service_tier": "auto"}  # fmt: skip


class TextFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def check_schema(self) -> "TextFormat":
        if self.type == "json_schema" and (self.schema_ is None or self.name is None):
            raise ApiError(
                "text.format: json_schema needs a name and a schema", "body.text.format.type", kind=WRONG_TYPE
            )
        return self

    def described(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, include=None if self.type == "json_schema" else {"type"})


class TextConfig(BaseModel):
    format: TextFormat | None = None
    verbosity: str | None = None


class InputMessage(ChatMessage):
    type: Literal["message"] = "message"


class ResponsesRequest(Generation):
    """POST /v1/responses."""

    input: str | Items[InputMessage]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextConfig | None = None
    store: bool | None = True
    background: bool | None = False
    previous_response_id: str | None = None
    include: Items[str] | None = None
    top_logprobs: int | None = None
    metadata: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    reasoning: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Items[dict[str, Any]] | None = None
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def check_response(cls, data: Any) -> Any:
        if isinstance(data, dict):
            if data.get("tools"):
                raise ApiError("tools: /v1/chat/completions has them, /v1/responses has not", "tools")
            if data.get("tool_choice", "auto") not in ("auto", "none"):
                raise ApiError("tool_choice needs tools", "tool_choice")
            if data.get("prompt") is not None:
                raise ApiError("prompt: no prompts are stored, give the input", "prompt")
            if data.get("background"):
                raise ApiError(
                    "background: no answers are stored", "background", kind="invalid_request_error"
                )
        return data

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    def as_chat(self) -> ChatCompletionRequest:
        """The same as a call of /v1/chat/completions.

        Raises:
            ApiError: it has no such form.
        """
        said = self.input
        messages = [InputMessage(role="user", content=said)] if isinstance(said, str) else said
        plain = [message.model_dump(exclude_none=True, exclude={"type"}) for message in messages]
        for message in plain:
            for part in message["content"] if isinstance(message.get("content"), list) else ():
                if part.get("type") in ("input_text", "output_text"):
                    part["type"] = "text"
        if self.instructions:
            plain.insert(0, {"role": "system", "content": self.instructions})
        asked = self.model_dump(include=set(Generation.model_fields) - {"n"}, exclude_none=True)
        asked |= {"messages": plain, "max_completion_tokens": self.max_output_tokens, "stream_options": None}
        effort = (self.reasoning or {}).get("effort")
        asked |= {"chat_template_kwargs": self.chat_template_kwargs, "reasoning_effort": effort}
        if self.wants_logprobs:
            asked |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        if self.truncation == "auto":
            asked["truncate_prompt_tokens"] = -1
        if self.text and self.text.format and self.text.format.type != "text":
            form = self.text.format.described()
            asked["response_format"] = {
                "type": form["type"],
                "json_schema": form if "schema" in form else None,
            }
        return validated(ChatCompletionRequest, asked)


def no_such_response(name: str) -> ApiError:
    message = f"Response with id '{visible(name)}' not found: no answers are stored"
    return ApiError(message, "response_id", 404, "invalid_request_error")


class Response(Chat):
    """One call of /v1/responses."""

    PREFIX, END, LENGTH = "resp_", b"", "max_output_tokens"

    def __init__(self, server: Any, asked: ResponsesRequest) -> None:
        if asked.previous_response_id is not None:
            raise no_such_response(asked.previous_response_id)
        super().__init__(server, asked.as_chat())
        self.asked, self.item_id = asked, f"msg_{uuid.uuid4().hex[:16]}"

    def described_as(
        self, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        """The answer as far as it has come."""
        asked, params = self.asked, self.accepted[0].params
        text = asked.text and {"format": asked.text.format and asked.text.format.described()}
        return {
            **ALWAYS,
            "id": self.request_id,
            "created_at": self.head["created"],
            "model": self.head["model"],
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": output,
            "usage": usage,
            "max_output_tokens": params.max_tokens,
            "top_logprobs": params.logprobs,
            "text": text and text | {"verbosity": asked.text.verbosity},
            "reasoning": None if asked.reasoning is None else NO_REASONING | asked.reasoning,
            **{name: getattr(params, name) for name in OF_PARAMS},
            **{name: getattr(asked, name) for name in OF_REQUEST},
        }

    def part(self, text: str, logprobs: Iterable[dict[str, Any]] | None) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.item_id, "type": "message", "role": "assistant", "status": status, "content": content, "phase": None,
        }  # fmt: skip

    def ended(
        self, text: str, logprobs: Iterable | None, reason: str, written: int, cached: int
    ) -> dict[str, Any]:
        status, read = "incomplete" if reason == "length" else "completed", len(self.prompts[0])
        of_input = {"cached_tokens": cached, "cache_write_tokens": 0}
        of_output = {"reasoning_tokens": 0, "tool_output_tokens": 0}
        counts = {
            "input_tokens": read,
            "input_tokens_details": of_input | {"input_tokens_per_turn": [], "cached_tokens_per_turn": []},
            "output_tokens": written,
            "output_tokens_details": of_output
            | {"output_tokens_per_turn": [], "tool_output_tokens_per_turn": []},
            "total_tokens": read + written,
        }
        return self.described_as(status, [self.item("completed", [self.part(text, logprobs)])], counts)

    def listed(self, part: CompletionOutput) -> Iterator[dict[str, Any]] | None:
        logprobs = self.logprobs(part)
        return logprobs and logprobs["content"]

    async def whole(self) -> dict[str, Any]:
        (output,) = await self.outputs()
        part, cached = output.outputs[0], self.engine.cached(output) or 0
        return self.ended(part.text, self.listed(part), part.finish_reason, len(part.token_ids), cached)

    async def stream(self) -> AsyncIterator[dict[str, Any]]:
        numbers = itertools.count()

        def event(kind: str, **fields: Any) -> dict[str, Any]:
            return {"type": f"response.{kind}", "sequence_number": next(numbers), **fields}

        item = {"output_index": 0}
        where = item | {"item_id": self.item_id, "content_index": 0}
        whole: RequestOutput | None = None
        async with aclosing(self.engine.generate(self.accepted[0])) as outputs:
            async for output in outputs:
                raise_error(output)
                if whole is None:
                    for kind in ("created", "in_progress"):
                        yield event(kind, response=self.described_as("in_progress", [], None))
                    yield event("output_item.added", item=self.item("in_progress", []), **item)
                    yield event("content_part.added", part=self.part("", []), **where)
                new = output.outputs[0]
                yield event("output_text.delta", delta=new.text, logprobs=self.listed(new) or [], **where)
                if whole is None:
                    whole = output
                else:
                    whole.add(output)
        part, cached = whole.outputs[0], self.engine.cached(whole) or 0
        text, listed = part.text, partial(self.listed, part)
        yield event("output_text.done", text=text, logprobs=listed() or [], **where)
        yield event("content_part.done", part=self.part(text, listed()), **where)
        yield event("output_item.done", item=self.item("completed", [self.part(text, listed())]), **item)
        ended = self.ended(text, listed(), part.finish_reason, len(part.token_ids), cached)
        yield event("completed", response=ended)
