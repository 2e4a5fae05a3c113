"""POST /v1/chat/completions: messages in, the next message out.

The model's chat template (`chat/chat_template.py`, Phase 1) writes them down as one text.

Source: vllm/entrypoints/openai/chat_completion/serving.py.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from phase1_tokens_embeddings.chat import ChatTemplate
from phase4_scheduler.engine.outputs import CompletionOutput, RequestOutput
from phase4_scheduler.server.calls import LOWEST_LOGPROB, Call, Piece, spelled
from phase4_scheduler.server.protocol import ApiError, ChatCompletionRequest, ChatMessage, TokenizeRequest
from phase4_scheduler.server.tools import NamedTool, ToolCallReader, is_json, read_calls


def plain_message(message: ChatMessage) -> dict[str, Any]:
    """A message as templates expect it. Content in parts becomes one text."""
    content = message.content
    if isinstance(content, list):
        for part in content:
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise ApiError(f"a part of type {part.get('type')!r}: this model reads text only")
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
        return template.render(**request.variables() | {"messages": plain})

    try:
        return await asyncio.to_thread(render)
    except ValueError as error:
        raise ApiError(str(error)) from None


NO_TOOLS = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))


class Chat(Call):
    """One call of /v1/chat/completions."""

    PREFIX, WHOLE, CHUNK = "chatcmpl-", "chat.completion", "chat.completion.chunk"
    USAGE: ClassVar[dict[str, Any]] = {"completion_tokens_details": None}
    LENGTH = "max_completion_tokens"  # the field's name in errors

    def __init__(self, server: Any, request: ChatCompletionRequest) -> None:
        super().__init__(server, request)
        # Of the answers of which a stream has said something.
        self.readers: dict[int, ToolCallReader | None] = {}

    async def prepare(self) -> None:
        r = self.request
        if self.server.template is None:
            raise ApiError("this model has no chat template: use /v1/completions")
        if r.tool_choice == "auto":
            if self.server.tool_call_parser is None:
                raise ApiError(
                    'the tool_choice "auto" needs a server with --enable-auto-tool-choice and --tool-call-parser'
                )
            r.skip_special_tokens = False  # the tags are special tokens of some models
        self.text = await rendered(self.server.template, r)
        await self.read([self.text])
        most = r.max_tokens if r.max_completion_tokens is None else r.max_completion_tokens
        name = "max_tokens" if r.max_completion_tokens is None else self.LENGTH
        prompt_logprobs = r.top_logprobs if r.prompt_logprobs is None and r.echo else r.prompt_logprobs
        await self.accept(most, (r.top_logprobs or 0) if r.logprobs else None, prompt_logprobs, name)
        last = r.messages[-1]
        self.role = "assistant" if r.add_generation_prompt else last.role
        # What an answer repeats first, if its client wants that: the message that it goes on with.
        self.echoed = plain_message(last)["content"] if r.echo and last.role == self.role else ""

    def tool_call_reader(self) -> ToolCallReader | None:
        """What finds the tool calls in an answer; None: it has none."""
        choice = self.request.tool_choice
        if choice in (None, "none"):
            return None
        named = choice.function.name if isinstance(choice, NamedTool) else None
        parallel = self.request.parallel_tool_calls is not False
        return ToolCallReader(named, tagged=choice == "auto", parallel=parallel)

    def finish_reason(self, part: CompletionOutput, called: bool) -> str | None:
        """As OpenAI has it: with a tool that the client has named an ordinary end."""
        forced = self.request.tool_choice == "required" and part.finish_reason == "stop"
        auto = self.request.tool_choice == "auto" and called and part.finish_reason is not None
        return "tool_calls" if forced or auto else part.finish_reason

    def choice(self, number: int, output: RequestOutput, part: CompletionOutput) -> dict[str, Any]:
        message = {"role": self.role, "content": self.echoed + part.text, **NO_TOOLS}
        if reader := self.tool_call_reader():
            content, calls = read_calls(reader, part.text)
            if calls:
                message |= {"content": content or None, "tool_calls": calls}
        return {
            "message": message,
            "logprobs": self.logprobs(part),
            "finish_reason": self.finish_reason(part, "tool_calls" in message),
            "stop_reason": part.stop_reason,
            "token_ids": list(part.token_ids) if self.request.return_token_ids else None,
            "routed_experts": None,
        }

    def beside(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        return self.prompt_fields() | {"prompt_logprobs": self.described(outputs[0].prompt_logprobs)}

    def prompt_fields(self) -> dict[str, Any]:
        r = self.request
        return {
            "prompt_token_ids": self.prompts[0] if r.return_token_ids else None,
            "prompt_text": self.text if r.return_prompt_text else None,
        }

    def pieces(
        self, index: int, number: int, output: RequestOutput, part: CompletionOutput
    ) -> Iterator[Piece]:
        """First the role, then the text or the tool calls."""
        r, nothing = self.request, {"logprobs": None, "finish_reason": None}
        if index not in self.readers:
            self.readers[index] = self.tool_call_reader()
            yield {"delta": {"role": self.role, "content": ""}} | nothing, self.prompt_fields(), 0
            if self.echoed:
                yield {"delta": {"content": self.echoed}} | nothing, {}, 0
        delta, reader = {"content": part.text}, self.readers[index]
        if reader is not None:
            content, calls = reader.push(part.text, part.finish_reason is not None)
            delta = {name: value for name, value in (("content", content), ("tool_calls", calls)) if value}
        # One that the limit cuts off is none.
        called = part.finish_reason == "stop" and reader is not None and reader.num_calls > 0
        choice = {
            "delta": delta,
            "logprobs": self.logprobs(part),
            "finish_reason": self.finish_reason(part, called),
            "token_ids": list(part.token_ids) if r.return_token_ids else None,
        }
        if part.finish_reason is not None:
            choice["stop_reason"] = part.stop_reason
        says = delta or part.finish_reason or r.logprobs or r.return_token_ids
        yield choice if says else None, {}, len(part.token_ids)

    def logprobs(self, part: CompletionOutput) -> dict[str, Any] | None:
        if not self.request.logprobs:
            return None
        wanted = self.request.top_logprobs or 0

        def described(token: int, found: dict[int, float]) -> dict[str, Any]:
            entries = [self.entry(t, value) for t, value in list(found.items())[:wanted]]
            whole = list(spelled(self.tokenizer, token).encode())  # also where it is named by its id
            return self.entry(token, found[token]) | {"bytes": whole, "top_logprobs": entries}

        return {"content": map(described, part.token_ids, part.logprobs)}

    def entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.spell(token)
        return {"token": text, "logprob": max(logprob, LOWEST_LOGPROB), "bytes": list(text.encode())}
