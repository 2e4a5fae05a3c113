"""Tool calls are read from an answer's text, wherever a stream cuts it."""

import json

import jsonschema
import pytest

from phase4_scheduler.features.structured_output import StructuredOutputsParams
from phase4_scheduler.server.tools import Tool, ToolCallReader, calls_schema, read_calls

WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"type": "string", "maxLength": 12}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
SAID = '{"a": "}<\\\\", "b": [{}, "]\\""]}'
TEXTS = {  # how the reader is made, a text, and what is in it
    "named": (dict(named="f"), SAID, "", [("f", SAID)]),
    "required": (
        {},
        f'[{{"name":"f","parameters":{SAID}}}, {{"name": "g\\u00e9", "parameters": {{}}}}]',
        "",
        [("f", SAID), ("gé", "{}")],
    ),
    "auto": (
        dict(tagged=True),
        f'So <tool_call>\n{{"name": "f", "arguments": {SAID}}}\n</tool_call>\n<tool_call>{{"name":"g","arguments":{{}}}}</tool_call>',
        "So ",
        [("f", SAID), ("g", "{}")],
    ),
    "auto, one call only": (
        dict(tagged=True, parallel=False),
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 2,
        "",
        [("f", "{}")],
    ),
    "auto without a call": (dict(tagged=True), "1 < 2 <tool", "1 < 2 <tool", []),
}


@pytest.mark.parametrize("name", TEXTS)
def test_calls_are_found_wherever_the_text_is_cut(name):
    made, text, content, calls = TEXTS[name]
    found, whole = read_calls(ToolCallReader(**made), text)
    assert (found, [(c["function"]["name"], c["function"]["arguments"]) for c in whole]) == (content, calls)
    for size in range(1, 9):
        reader, said, names, arguments = ToolCallReader(**made), "", {}, {}
        for at in range(0, len(text), size):
            more, deltas = reader.push(text[at : at + size], at + size >= len(text))
            said += more
            for delta in deltas:
                index, function = delta["index"], delta["function"]
                if "id" in delta:
                    names[index] = function["name"]
                arguments[index] = arguments.get(index, "") + function["arguments"]
        assert (said, list(zip(names.values(), arguments.values(), strict=True))) == (content, calls)


def test_a_tool_is_described_to_the_template_as_in_vllm():
    given = {"name": "now", "parameters": {}, "strict": True}
    described = Tool(function=given, unknown=1).described()
    assert list(described["function"].items()) == [
        ("name", "now"), ("description", None), ("parameters", {}), ("strict", True)
    ]  # fmt: skip
    assert list(Tool(function={"name": "now"}).described()["function"]) == [
        "name",
        "description",
        "parameters",
    ]


def test_the_schema_of_required_calls_admits_calls_alone():
    schema = calls_schema([Tool(**tool) for tool in TOOLS], parallel=False)
    StructuredOutputsParams(json=schema)
    jsonschema.validate([{"name": "weather", "parameters": {"city": "Paris"}}], schema)
    for wrong in ([], [{"name": "other", "parameters": {}}], [{"name": "weather", "parameters": {"city": 1}}], [{"name": "now", "parameters": {}}] * 2):  # fmt: skip
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    clash = json.loads(json.dumps(TOOLS).replace('"now"', '"now", "parameters": {"$defs": {"city": {}}}'))
    with pytest.raises(ValueError, match="two schemas of the name 'city'"):
        calls_schema([Tool(**tool) for tool in clash], parallel=None)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("<tool_call>weather in Paris</tool_call>", None),
        (r'<tool_call>{"name": "get\_weather", "arguments": {}}</tool_call>', None),  # no JSON: text
        ('<tool_call>{"type": "function", "name": "f", "arguments": {}}</tool_call>', "f"),
        ("Calls begin with <tool_call>, you know.", None),
    ],
)
def test_odd_answers_lose_nothing(text, name):
    content, calls = read_calls(ToolCallReader(tagged=True), text)
    assert [call["function"]["name"] for call in calls] == ([name] if name else [])
    assert name or content == text
    streamed = ToolCallReader(tagged=True)
    pieces = [streamed.push(c)[0] for c in text] + [streamed.push("", last=True)[0]]
    assert name or "".join(pieces) == text
    broken = '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>'
    assert read_calls(ToolCallReader(tagged=True), broken) == (broken, [])
