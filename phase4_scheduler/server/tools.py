"""Tool calls: the schema that forces an answer to be one, and the calls in an answer's text, whole or as it arrives.

    tool_choice   the answer's text                                                    by
    a function    its arguments: {"city": "Paris"}                                     structured output
    required      [{"name": "weather", "parameters": {"city": "Paris"}}]               structured output
    auto          text, and <tool_call>{"name": ..., "arguments": ...}</tool_call>     the model, as it was trained

Source: vllm/tool_parsers/utils.py and hermes_tool_parser.py, for the formats.
"""

import json
import re
import uuid
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel

TOOL_CALL_PARSERS = ("hermes",)  # formats of `auto`
BEGIN, END = "<tool_call>", "</tool_call>"
HEAD = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*("(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*")\s*,\s*"(?:parameters|arguments)"\s*:\s*(?=\S)'
)


class Function(BaseModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None

    @property
    def schema_(self) -> dict[str, Any]:
        return self.parameters or {"type": "object", "properties": {}}


class Tool(BaseModel):
    type: Literal["function"] = "function"
    function: Function

    def described(self) -> dict[str, Any]:
        """As templates write it down. As in vLLM, a description and parameters that are missing are null."""
        optional = ("strict", "defer_loading")
        given = {name: value for name, value in self.function if value is not None or name not in optional}
        return {"type": self.type, "function": given}


class NamedTool(BaseModel):
    """A `tool_choice` that is one of the tools."""

    class Name(BaseModel):
        name: str

    type: Literal["function"] = "function"
    function: Name


class CalledTool(BaseModel, extra="allow"):
    """A call in an earlier message of the conversation."""

    class Call(BaseModel):
        name: str
        arguments: str = "{}"

    function: Call


def calls_schema(tools: Sequence[Tool], parallel: bool | None) -> dict[str, Any]:
    """What an answer with tool_choice "required" must match. Raises ValueError: a definition has two meanings."""
    calls, definitions = [], {}
    for tool in tools:
        parameters = dict(tool.function.schema_)
        inner = parameters.pop("$defs", None) or {}
        if not isinstance(inner, dict):
            raise ValueError(f"tools: $defs of {tool.function.name!r} is no object")
        for name, schema in inner.items():  # their references begin at the root
            if definitions.setdefault(name, schema) != schema:
                raise ValueError(f"tools: $defs holds two schemas of the name {name!r}")
        call = {"name": {"const": tool.function.name}, "parameters": parameters}
        calls.append(
            {"type": "object", "properties": call, "required": list(call), "additionalProperties": False}
        )
    most = {"maxItems": 1} if parallel is False else {}
    return {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}, "$defs": definitions}


class ToolCallReader:
    """Finds the tool calls in an answer, piece by piece.

    >>> ToolCallReader(tagged=True).push('So: <tool_call>{"name": "f", "arguments": {}}</tool_call>')[0]
    'So: '

    Args:
        named: the function that was chosen: all text is its arguments. tagged: calls are between tags.
        parallel: False: only the first call counts.
    """

    def __init__(self, named: str | None = None, tagged: bool = False, parallel: bool = True) -> None:
        self.named, self._tagged, self._parallel = named, tagged, parallel
        self._place = "text" if tagged else "name" if named is None else "start"
        self._rest = ""
        self._depth, self._quoted, self._escaped = 0, False, False  # in the JSON of the arguments
        self.num_calls = 0

    def push(self, text: str, last: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """The text beside the calls, and what is new of the calls, both as far as they are certain."""
        self._rest += text
        content, calls = "", []
        while self._rest:
            if self._place == "text":
                before, tag, after = self._rest.partition(BEGIN)
                if not tag:
                    held = 0 if last else overlap(before, BEGIN)
                    content += before[: len(before) - held]
                    self._rest = before[len(before) - held :]
                    break
                content, self._rest, self._place = content + before, after, "name"
            elif self._place == "name":
                if (found := HEAD.search(self._rest)) is None:
                    if last and self._tagged and not self.num_calls:  # no call after all
                        content, self._rest = content + BEGIN + self._rest, ""
                    break
                calls.append(self._begin(json.loads(found[1])))
                self._rest = self._rest[found.end() :]
            elif self._place == "start":
                calls.append(self._begin(self.named))
            elif self._place == "arguments":
                end = None if self.named else self._end_of_arguments()
                if piece := self._rest[:end]:
                    calls.append({"index": self.num_calls - 1, "function": {"arguments": piece}})
                self._rest = "" if end is None else self._rest[end:]
                if end is not None:
                    self._place = "closing" if self._tagged else "name"
            else:
                _, tag, after = self._rest.partition(END)
                if not tag:
                    break
                # Text behind the first call is not for the user.
                self._rest, self._place = after, "name"
        return content, [call for call in calls if self._parallel or call["index"] == 0]

    def _begin(self, name: str) -> dict[str, Any]:
        self._place, self._depth, self._quoted = "arguments", 0, False
        self.num_calls += 1
        return {
            "index": self.num_calls - 1,
            "id": f"chatcmpl-tool-{uuid.uuid4().hex}",
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }

    def _end_of_arguments(self) -> int | None:
        """Where in the text that is left the JSON of the arguments ends; None: not yet."""
        for i, c in enumerate(self._rest):
            if self._quoted:
                self._quoted = self._escaped or c != '"'
                self._escaped = c == "\\" and not self._escaped
            elif c == '"':
                self._quoted = True
            elif c in "{[":
                self._depth += 1
            elif c in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return i + (self._depth == 0)
        return None


def overlap(text: str, tag: str) -> int:
    """Characters at the end of `text` that may be the beginning of `tag`."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)


def read_calls(reader: ToolCallReader, text: str) -> tuple[str, list[dict[str, Any]]]:
    """A whole answer: its text beside the calls, and the calls. One whose arguments are no JSON is text."""
    content, deltas = reader.push(text, last=True)
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        if "id" in delta:
            calls.append({key: value for key, value in delta.items() if key != "index"})
        else:
            calls[-1]["function"]["arguments"] += delta["function"]["arguments"]
    if reader.named is None and not all(is_json(call["function"]["arguments"]) for call in calls):
        return text, []
    return (content, calls) if calls else (text, [])


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
