"""What clients send: OpenAI's fields and vLLM's, checked by pydantic. And the one form of every error.

Fields that are not listed here are ignored, as vLLM does.

Source: vllm/entrypoints/openai/completion/protocol.py and chat_completion/protocol.py; OpenAI's API reference.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, BeforeValidator, Field, create_model, model_validator

from labkit.foreign import quoted, visible
from labkit.machine import version_of
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.features.structured_output import StructuredSamplingParams
from phase4_scheduler.server.encoding import JsonResponse
from phase4_scheduler.server.tools import CalledTool, NamedTool, Tool, calls_schema

MOST_LOGPROBS = 20
WRONG_TYPE = "Bad Request"  # vLLM spells it so where a field's type is wrong, and BadRequestError elsewhere
NAMED = {
    *("temperature", "top_p", "max_tokens", "logprobs", "prompt_logprobs"),
    *("logit_bias", "allowed_token_ids", "stop_token_ids"),
}
MOST_PROMPTS = 1024
GUIDED = ("json", "regex", "choice", "grammar", "json_object", "decoding_backend", "whitespace_pattern")
# Fields that clients know from elsewhere, and that would change the answer.
NOT_DONE = {
    "use_beam_search": "this server samples; ask for n answers instead",
    "logprob_token_ids": "top_logprobs (of chat) and logprobs report the likeliest tokens",
    "prompt_embeds": "give the prompt as text or as token ids",
    "repetition_detection": "repetition_penalty makes repetitions less likely",
    "thinking_token_budget": "max_tokens limits the answer, its thoughts included",
} | {f"guided_{name}": "structured_outputs has taken its place" for name in GUIDED}
HIGHEST_TEMPERATURE = 2
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Field(ge=0)]
T = TypeVar("T")
# A list that is refused at its first wrong item: pydantic would describe each of a million.
Items = Annotated[list[T], Field(fail_fast=True)]
LONGEST_BAD_WORDS = 2**14  # characters of all of them: they are tokenised, and looked for after each token
LONGEST_REQUEST_ID = 256  # characters: every chunk of a stream repeats it


class ApiError(Exception):
    """An error for the client: everything else that is raised is the server's own. Checks of fields raise it, too."""

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, kind: str = "BadRequestError"
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}

    @classmethod
    def of(cls, error: ValueError) -> "ApiError":
        """What the engine refused. Its messages begin with the field, and vLLM names some of them in `param`."""
        name = str(error).split(" ")[0]
        return cls(str(error), name if name in NAMED else None)

    def response(self) -> JsonResponse:
        return JsonResponse(self.body, self.status)


def as_biases(value: Any) -> Any:
    """`logit_bias` by token id, clamped as vLLM does. The first wrong entry is refused."""
    if not isinstance(value, dict):
        return value  # pydantic says what is wrong
    biases = {}
    left = [
        *reversed(value)
    ]  # what is done is dropped at once: twice in memory it takes more than 20 bytes per byte of the body
    while left:
        token = left.pop()
        bias = value.pop(token)
        try:
            number = float(bias)
        except (TypeError, ValueError, OverflowError):
            place = f"body.logit_bias.{visible(token)}"
            raise ApiError(f"logit_bias of {quoted(token)} is no number", place, kind=WRONG_TYPE) from None
        try:
            biases[int(token)] = min(100.0, max(-100.0, number))
        except ValueError:
            raise ApiError(f"logit_bias: the key {quoted(token)} is no token id", "logit_bias") from None
    value.clear()
    return biases


class StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class JsonSchema(BaseModel):
    """OpenAI's way to give a JSON schema: with a name around it."""

    name: str
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel, extra="allow"):
    """OpenAI's names for what an answer must match; a structural tag stands in fields of its own."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"] = "text"
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def check_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            raise ApiError("response_format: the type json_schema needs json_schema", "response_format")
        return self

    def constraint(self) -> dict[str, Any] | None:
        """As fields of `StructuredOutputsParams`."""
        if self.type == "json_schema":
            return {"json": self.json_schema.schema_}
        if self.type == "json_object":
            return {"json_object": True}
        return {"structural_tag": self.model_extra} if self.type == "structural_tag" else None


# Each sampling parameter is a field of a request. The classes below redefine those that have a type of their own in HTTP.
TYPES = get_type_hints(SamplingParams)
OF_ENDPOINTS = {"max_tokens", "logprobs"}  # completions and chat give them different meanings
SAMPLING = [field.name for field in fields(SamplingParams) if field.init and field.name not in OF_ENDPOINTS]
SamplingFields = create_model("SamplingFields", **{name: (TYPES[name] | None, None) for name in SAMPLING})


class Generation(SamplingFields, BaseModel):
    """The fields that completions and chat have in common: how to choose tokens, when to stop, what to report."""

    model: str | None = None
    n: int = 1
    seed: Int64 | None = None
    stop: str | Annotated[list[str], Field(fail_fast=True, max_length=4)] | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    logit_bias: Annotated[dict[int, float] | None, BeforeValidator(as_biases)] = None
    stop_token_ids: Items[int] | None = None
    allowed_token_ids: Items[int] | None = None
    bad_words: Items[str] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    return_token_ids: bool | None = None
    priority: Int64 = 0
    request_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**63 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None

    @model_validator(mode="before")
    @classmethod
    def check_common(cls, data: Any) -> Any:
        """Rules that vLLM looks at before it looks at types."""
        if not isinstance(data, dict):
            return data
        for name in ("top_logprobs" if "messages" in data else "logprobs", "prompt_logprobs"):
            value = data.get(name)
            if value is not None and not isinstance(value, (int, float)):
                raise ApiError(f"{name} must be a whole number", name)
        if data.get("stream_options") and not data.get("stream"):
            raise ApiError("stream_options can only be set when stream is true", "stream_options")
        prompt_logprobs = data.get("prompt_logprobs") or 0
        if prompt_logprobs < 0:
            raise ApiError(f"prompt_logprobs is {prompt_logprobs}: 0 or more", "prompt_logprobs")
        if data.get("stream") and prompt_logprobs > 0:
            raise ApiError("prompt_logprobs cannot be streamed", "prompt_logprobs")
        if prompt_logprobs > MOST_LOGPROBS:
            raise ApiError(
                f"prompt_logprobs is {prompt_logprobs}: at most {MOST_LOGPROBS}", "prompt_logprobs"
            )
        salt = data.get("cache_salt")
        if salt is not None and not (isinstance(salt, str) and re.fullmatch(r"[^@/\\\0]{1,128}", salt)):
            raise ApiError("cache_salt: a text of 1 to 128 characters without @, /, \\ and NUL", "cache_salt")
        if data.get("suffix") is not None:
            raise ApiError("suffix: this model cannot fill in", "suffix")
        for name, why in NOT_DONE.items():
            value = data.get(name)
            # In vLLM, a budget of -1 is no limit, and 0 is one.
            if value not in (None, -1) if name == "thinking_token_budget" else value:
                raise ApiError(f"{name} is not supported: {why}", name)
        return data

    def constraint(self) -> dict[str, Any] | None:
        """What the answer must match, as fields of `StructuredOutputsParams`. `response_format` goes before."""
        own = self.response_format and self.response_format.constraint()
        return self.structured_outputs if own is None else (self.structured_outputs or {}) | own

    def params(self, defaults: Mapping[str, Any], **own: int | None) -> SamplingParams:
        """SamplingParams. What is None has the server's default, or else vLLM's.

        Args:
            own: max_tokens, logprobs and prompt_logprobs, which each endpoint works out.

        Raises:
            ValueError: a value out of its range.
        """
        if (length := sum(map(len, self.bad_words))) > LONGEST_BAD_WORDS:
            raise ApiError(f"bad_words has {length:,} characters: at most {LONGEST_BAD_WORDS:,}", "bad_words")
        if any(word.isspace() for word in self.bad_words):
            raise ApiError("bad_words holds nothing but spaces", "bad_words")
        if (self.temperature or 0) > HIGHEST_TEMPERATURE:
            raise ApiError(f"temperature is {self.temperature}: at most {HIGHEST_TEMPERATURE}", "temperature")
        # Their ranges are checked in one place, where they are made.
        given = {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}
        given = {**defaults, **given, **own}
        if (constraint := self.constraint()) is None:
            return SamplingParams(**given)
        return StructuredSamplingParams(**given, structured_outputs=constraint)


class CompletionRequest(Generation):
    """POST /v1/completions."""

    prompt: Items[TokenId] | Items[Items[TokenId]] | str | Items[str] | None = None
    echo: bool | None = False
    add_special_tokens: bool = True
    logprobs: int | None = None
    max_tokens: int | None = 16
    suffix: str | None = None
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def check_completion(cls, data: Any) -> Any:
        if isinstance(data, dict):
            if data.get("prompt") in (None, ""):
                raise ApiError("give a prompt that is not empty", "prompt")
            prompts = data["prompt"] if isinstance(data["prompt"], list) else []
            if len(prompts) > MOST_PROMPTS and not all(isinstance(token, int) for token in prompts):
                raise ApiError(f"{len(prompts):,} prompts: at most {MOST_PROMPTS:,}", "prompt")
            check_logprobs("logprobs", data.get("logprobs"))
            if data.get("max_tokens") is None:
                data["max_tokens"] = 16
        return data


class ChatMessage(BaseModel, extra="allow"):
    role: str
    content: str | Items[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: Items[CalledTool] | None = None


class TemplateFields(BaseModel):
    """What a chat template may ask for besides the messages."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Items[Tool] | None = None
    documents: Items[dict[str, Any]] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def variables(self) -> dict[str, Any]:
        """By name, as for `ChatTemplate.render`. The request's own fields go before `chat_template_kwargs`."""
        own = {name: getattr(self, name) for name in ("add_generation_prompt", "continue_final_message")}
        own["tools"] = [tool.described() for tool in self.tools or ()] or None
        if self.documents is not None:
            own["documents"] = self.documents
        if (effort := self.reasoning_effort) is None:
            return (self.chat_template_kwargs or {}) | own
        thinks = {"enable_thinking": effort != "none"}  # the name that most templates have for it
        return thinks | (self.chat_template_kwargs or {}) | {"reasoning_effort": effort} | own


class ChatCompletionRequest(TemplateFields, Generation):
    """POST /v1/chat/completions."""

    messages: Items[ChatMessage]
    add_special_tokens: bool = False  # templates write the first token
    n: int | None = 1
    return_prompt_text: bool | None = False
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    echo: bool = False
    user: str | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = True

    @model_validator(mode="before")
    @classmethod
    def check_chat(cls, data: Any) -> Any:
        if isinstance(data, dict):
            check_logprobs("top_logprobs", data.get("top_logprobs"))
            if data.get("top_logprobs") and not data.get("logprobs"):
                raise ApiError("top_logprobs needs logprobs to be true", "top_logprobs")
            check_messages(data)
            if data.get("tools") == []:
                raise ApiError("tools is empty: give one or leave the field out", "tools")
            choice = data.get("tool_choice")
            if choice not in (None, "none") and not data.get("tools"):
                raise ApiError("tool_choice needs tools", "tool_choice")
            if not isinstance(choice, dict) and choice not in (None, "none", "auto", "required"):
                raise ApiError("tool_choice is none, auto, required or one of the tools", "tool_choice")
            if isinstance(choice, dict) and not isinstance(choice.get("function"), dict):
                raise ApiError("tool_choice names no function", "tool_choice.function")
            if data.get("chat_template") is not None:
                raise ApiError("chat_template: this server takes no templates from clients")
            if "messages" in data and data["messages"] is None:
                raise ApiError("messages is null: give at least one")
            if data.get("tools"):
                data.setdefault("tool_choice", "auto")
        return data

    @model_validator(mode="after")
    def check_tool_choice(self) -> "ChatCompletionRequest":
        if isinstance(self.tool_choice, NamedTool):
            if not any(tool.function.name == self.tool_choice.function.name for tool in self.tools):
                raise ApiError("tool_choice names none of the tools", "tool_choice")
            if super().constraint() is not None:
                raise ApiError("structured_outputs and tool_choice exclude each other: leave one out")
        return self

    def constraint(self) -> dict[str, Any] | None:
        """That of a forced tool call goes before all others."""
        if self.tool_choice == "required":
            schema = calls_schema(self.tools, self.parallel_tool_calls)
        elif isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            schema = next(tool.function.schema_ for tool in self.tools if tool.function.name == name)
        else:
            return super().constraint()
        return {"json": schema, "disable_any_whitespace": True}


class TokenizeRequest(TemplateFields):
    """POST /tokenize: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Items[ChatMessage] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = False

    @model_validator(mode="before")
    @classmethod
    def check_given(cls, data: Any) -> Any:
        if isinstance(data, dict):
            if data.get("messages") is None and data.get("prompt") is None:
                raise ApiError("give a prompt or messages", "body.prompt", kind=WRONG_TYPE)
            data.setdefault("add_special_tokens", data.get("messages") is None)
            check_messages(data)
        return data


class DetokenizeRequest(BaseModel):
    """POST /detokenize."""

    model: str | None = None
    tokens: Items[Annotated[int, Field(ge=0, le=2**63 - 1)]]


def check_messages(data: dict[str, Any]) -> None:
    if data.get("messages") == []:
        raise ApiError("messages is empty: give at least one")
    if data.get("continue_final_message") and data.get("add_generation_prompt", True):
        raise ApiError("continue_final_message and add_generation_prompt exclude each other")


def check_logprobs(name: str, value: Any) -> None:
    if not isinstance(value, (int, float)):
        return  # its type is looked at later
    if not 0 <= value <= MOST_LOGPROBS:
        place = "logprobs" if value == -1 or value > 0 else name
        raise ApiError(f"{name} is {value}: from 0 to {MOST_LOGPROBS}", place)


FINGERPRINT = f"inference-lab-{version_of('inference-lab') or '0'}"
# Fields of vLLM's answers for what this server has not. Clients may look for them.
NOT_HERE = dict.fromkeys(("service_tier", "kv_transfer_params", "ec_transfer_params", "metrics"))


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> dict[str, Any]:
    counts = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    if cached_tokens is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return counts


# Whole answers have null for what is not known.
NO_DETAILS = dict.fromkeys(("prompt_tokens_details", "completion_tokens_details"))
