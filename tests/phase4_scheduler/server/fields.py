"""What a request of each kind may say: every option, right and wrong, as tables of fields.

A row holds what differs from the request that heads its endpoint: `{"stop": "he"}` is that request with a stop string,
`ABSENT` leaves a field out. These requests decode greedily, so that texts can be compared: a completion goes on
`, and then he said, "I will go to the King's daughter`, a chat is answered `I am not a woman," answered the woman, "but
I am`. Where vLLM refuses temperature 0, `top_k=1` does the same. Only the rows of SAMPLED draw at random.
"""

ABSENT = object()
KING = 735  # the token " King"
END = 8191  # <|endoftext|>
VOCAB = 8192
CONTEXT = 512  # --max-model-len of both servers
INT64_MAX = 2**63 - 1


COMPLETION = {"model": "tales", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
CHAT = {"model": "tales", "messages": [{"role": "user", "content": "Who is there?"}]}
CHAT |= {"max_tokens": 8, "temperature": 0}
RESPONSE = {"model": "tales", "input": "Who is there?", "max_output_tokens": 8, "temperature": 0}
TOKENIZE = {"model": "tales", "prompt": "Once upon a time"}
DETOKENIZE = {"model": "tales", "tokens": [4078, 639, 258, 551]}

STREAM = {"stream": True}
USAGE = STREAM | {"stream_options": {"include_usage": True}}
ALL_USAGE = STREAM | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
TWO = {"n": 2, "temperature": 1, "top_k": 1}
ECHO = {"echo": True}
PROMPTS = {"prompt": ["Once upon a time", "The King"]}
YES_OR_NO = {"choice": ["yes", "no"]}
OVER_TOKENS = ["I w", 'n," a']  # one in either answer: `"I will` and `woman," answered`
IMAGE = "data:image/png;base64,AA=="
DRAW = {"temperature": 1, "ignore_eos": True}


def user(*contents, role="user", **fields):
    """A conversation of one role's messages."""
    return {"messages": [{"role": role, "content": content} | fields for content in contents]}


def turns(*said):
    """Messages, from pairs of a role and a content."""
    return [{"role": role, "content": content} for role, content in said]


def vary(field, *values, **beside):
    """A row for each value of a field: `vary("top_p", 0, 1.1)` has the rows "top_p 0" and "top_p 1.1"."""
    also = "".join(f", {name} {value!r}" for name, value in beside.items())
    return {
        f"{field} {'absent' if value is ABSENT else repr(value)}{also}": beside | {field: value}
        for value in values
    }


HERO = {
    "type": "object",
    "properties": {
        "hero": {"enum": ["king", "queen"]},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["hero", "age"],
    "additionalProperties": False,
}
HERO_FORMAT = {"type": "json_schema", "json_schema": {"name": "hero", "schema": HERO}}
HERO_TEXT = {"text": {"format": {"type": "json_schema", "name": "hero", "schema": HERO}}}
CITY = {"type": "object", "properties": {"city": {"enum": ["Bonn"]}}}
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": CITY}}]
CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
NOW, OTHER = ({"type": "function", "function": {"name": name}} for name in ("now", "other"))
NAMED = {"tools": TOOLS, "tool_choice": NOW}
ANSWER_BEGUN = {"messages": turns(("user", "Who is there?"), ("assistant", "I am the"))}
TALK = turns(("user", "Who is there?"), ("assistant", "The fox."), ("user", "Come in."))
GOES_ON = ANSWER_BEGUN | {"add_generation_prompt": False, "continue_final_message": True}


# What /v1/completions and /v1/chat/completions have in common.
BOTH = {
    "plain": {},
    **vary("model", ABSENT, None, "", "gpt-5", 5, "labkit/models/tales"),
    "unknown model in a stream": {"model": "gpt-5"} | STREAM,
    **vary("max_tokens", 1, 0, -1, CONTEXT + 1, "4", "many", True, 4.0, 4.5, [4]),
    "max_tokens null": {"max_tokens": None, "stop": ["daughter", "but I"]},
    "max_tokens 0 in a stream": {"max_tokens": 0} | USAGE,
    "max_tokens equal to the context": {"max_tokens": CONTEXT, "stop": ["daughter", "but I"]},
    "min_tokens": {"min_tokens": 4, "logit_bias": {str(END): 100}, "max_tokens": 6},
    **vary("min_tokens", 8, 9, -1, None),
    "min_tokens keeps a stop string waiting": {"min_tokens": 12, "stop": "he", "max_tokens": 24},
    **vary("logit_bias", {str(END): 100}, {"44": -100, str(KING): 5}, {str(KING): 1000}, {}, None),
    **vary("logit_bias", {str(VOCAB): 1}, {"-1": 1}, {"King": 1}, {str(KING): "much"}, [KING]),
    "end of text in a stream": {"logit_bias": {str(END): 100}} | USAGE,
    "end of text shown": {"logit_bias": {str(END): 100}, "skip_special_tokens": False},
    **vary("ignore_eos", True, logit_bias={str(END): 100}),
    **vary("ignore_eos", True, logit_bias={str(END): 100}, skip_special_tokens=False),
    **vary("ignore_eos", "yes", None),
    **vary("stop", "a", "ai", OVER_TOKENS, ["never", "I "], [",", "I"], max_tokens=24),
    **vary("stop", OVER_TOKENS, max_tokens=24, **USAGE),
    **vary("stop", ["zebra"], "", [], ["I", ""], None, 5, [5], ["zebra", "apple", "I", "not"]),
    **vary("stop", OVER_TOKENS, include_stop_str_in_output=True, max_tokens=24),
    **vary("stop", OVER_TOKENS, include_stop_str_in_output=True, max_tokens=24, **USAGE),
    "stop of five": {"stop": ["zebra", "apple", "I", "not", "king"]},
    **vary("stop_token_ids", [280, 354], max_tokens=24),
    **vary("stop_token_ids", [280, 354], include_stop_str_in_output=True, max_tokens=24),
    "stop_token_ids in a stream": {"stop_token_ids": [280, 354], "max_tokens": 24} | USAGE,
    **vary("stop_token_ids", [], None, [VOCAB], [-1], 44, ["King"]),
    **vary("top_k", 1, temperature=1),
    **vary("top_k", 1, temperature=2),
    **vary("temperature", 2.1, -0.1, "0", "hot", [0]),
    **vary("top_p", 1, 0, 1.1, -0.5, "all"),
    **vary("top_p", 1e-6, temperature=1),
    **vary("top_k", 0, -1, -2, 10**6, 2**63, 1.5),
    **vary("min_p", 1, temperature=1),
    **vary("min_p", 1.1, -0.1),
    **vary("seed", 1, -1, 2**63, "lucky"),
    **vary("presence_penalty", 2, -2, max_tokens=24),
    **vary("presence_penalty", 2.1, -2.1, "much"),
    **vary("frequency_penalty", 2, max_tokens=24),
    **vary("frequency_penalty", 2.1, -2.1),
    **vary("repetition_penalty", 2, max_tokens=24),
    **vary("repetition_penalty", 0.5, 0, -1),
    **vary("allowed_token_ids", [44, 270, KING], [], [VOCAB], [-1], ["King"]),
    **vary("bad_words", ["and", "said"], [", and then", "I am"], [], [""], [" "], None, "and"),
    **vary("n", 1, 2, 0, -1, None, "two", 1.5),
    "two of each": TWO,
    "two of each in a stream": TWO | USAGE,
    "two of each in a stream without usage": TWO | STREAM,
    "n beyond all bounds": {"n": 10**6, "temperature": 1},
    **vary("best_of", 2),
    "stream": STREAM,
    **vary("stream", False, None, "yes", "perhaps"),
    "stream with usage": USAGE,
    "stream with usage in every chunk": ALL_USAGE,
    **vary("stream_options", {"continuous_usage_stats": True}, {"include_usage": False}, {}, stream=True),
    **vary("stream_options", None, {"include_poetry": True}, True, stream=True),
    **vary("stream_options", {"include_usage": True}, {}),
    "stream with stream false and options": {"stream": False, "stream_options": {"include_usage": True}},
    **vary("stream_interval", 4, **USAGE),
    **vary("stream_interval", 0, **STREAM),
    **vary("prompt_logprobs", 0, 1, 21, -1, -2, "1"),
    **vary("prompt_logprobs", 1, 0, **STREAM),
    **vary("return_token_ids", True, False),
    "return_token_ids in a stream": {"return_token_ids": True} | USAGE,
    "return_token_ids of two": {"return_token_ids": True} | TWO,
    "return_token_ids of two in a stream": {"return_token_ids": True} | TWO | USAGE,
    **vary("priority", 0, 1, 2**63, "high"),
    "priority 1 in a stream": {"priority": 1} | STREAM,
    **vary("user", "ada", 5),
    **vary("poetry", True),
    **vary("request_id", "mine", 5),
    "request_id in a stream": {"request_id": "mine"} | STREAM,
    **vary("response_format", {"type": "text"}, {"type": "poem"}, {"type": "json_schema"}),
    "response_format json_object": {"response_format": {"type": "json_object"}, "max_tokens": 40},
    "response_format json_schema": {"response_format": HERO_FORMAT, "max_tokens": 40},
    "response_format json_schema in a stream": {"response_format": HERO_FORMAT, "max_tokens": 40} | USAGE,
    **vary("structured_outputs", YES_OR_NO, {"regex": "[ab]{3}"}, {"json": HERO}, max_tokens=40),
    **vary("structured_outputs", {"grammar": 'root ::= "a" | "b" "c"'}, {"json_object": True}, max_tokens=40),
    **vary("structured_outputs", YES_OR_NO, **USAGE),
    **vary("structured_outputs", YES_OR_NO, **TWO),
    **vary("structured_outputs", {}, {"regex": "[a-"}, {"regex": "a", "choice": ["a"]}, {"choice": []}, "a"),
    **vary("structured_outputs", {"colour": "red"}, {"grammar": "root ::="}, {"json": "{"}),
    **vary("structured_outputs", {"json": {"type": "x"}}),
    **vary("use_beam_search", True),
    **vary("cache_salt", "salt", ""),
    **vary("truncate_prompt_tokens", 3, return_token_ids=True),
    **vary("truncate_prompt_tokens", 3, return_token_ids=True, truncation_side="left"),
    **vary("truncate_prompt_tokens", -1, -2, CONTEXT + 1),
}

COMPLETIONS = {
    **vary("max_tokens", ABSENT),
    **vary("prompt", ABSENT, None, "", [], [[]], ["Once", ""], " ", ["Once upon a time"]),
    **vary("prompt", ["Once upon a time", "The King"], [4078, 639, 258, 551], [KING], [END], [4078, VOCAB]),
    **vary("prompt", [4078, -1], [2**63], [4078.5], [[4078, 639, 258, 551], [KING]], [4078, "Once"]),
    **vary("prompt", [4078, [639]], 5, True, {"text": "Once"}, "Once \ud83e"),
    "two prompts in a stream": PROMPTS | USAGE,
    "two prompts, two of each": PROMPTS | TWO,
    "two prompts, two of each, in a stream": PROMPTS | TWO | USAGE,
    "two prompts with token ids": PROMPTS | {"return_token_ids": True},
    "2000 prompts": {"prompt": ["Once"] * 2000},
    "lists of tokens in a stream": {"prompt": [[4078, 639, 258, 551], [KING]]} | USAGE,
    "prompt with the end of text": {"prompt": "The end.<|endoftext|>Once", "return_token_ids": True},
    "prompt in other scripts": {"prompt": "Ä 日本 🦊", "return_token_ids": True, "max_tokens": 4},
    "prompt with a zero byte": {"prompt": "Once\0upon", "return_token_ids": True},
    **{f"prompt of the context and {n} tokens": {"prompt": [44] * (CONTEXT + n)} for n in (-4, -1, 0, 1)},
    "prompt leaves less than max_tokens in a stream": {"prompt": [44] * (CONTEXT - 4)} | USAGE,
    "prompt beyond the context in a stream": {"prompt": [44] * (CONTEXT + 1)} | STREAM,
    "text beyond the context": {"prompt": "King " * (CONTEXT + 100)},
    "text far beyond the context": {"prompt": "King " * 20_000},
    "one of two prompts beyond the context": {"prompt": [[44], [44] * (CONTEXT + 1)]},
    "text beyond the context, truncated": {"prompt": "King " * 600, "truncate_prompt_tokens": -1},
    **vary("add_special_tokens", False),
    **vary("logprobs", 0, 1, 5, 21, -1, -2, None, True, False, "1", 1.5),
    **vary("logprobs", 20, max_tokens=2),
    "logprobs in a stream": {"logprobs": 2} | USAGE,
    "logprobs of two": {"logprobs": 1} | TWO,
    "logprobs of half a character": {"prompt": "🦊🦊🦊", "logprobs": 1, "allowed_token_ids": [172, 254]},
    "logprobs with tokens as ids": {"logprobs": 2, "return_tokens_as_token_ids": True},
    "logprobs under a bias": {"logprobs": 2, "logit_bias": {str(KING): 100}},
    "logprobs under a temperature": {"logprobs": 2, "temperature": 2, "top_k": 1},
    "logprobs under a penalty": {"logprobs": 2, "repetition_penalty": 2},
    "logprobs of allowed tokens": {"logprobs": 3, "allowed_token_ids": [44, 270]},
    "logprobs up to a stop string": {"logprobs": 1, "stop": "I w", "max_tokens": 24},
    "logprobs up to the end of text": {"logprobs": 1, "logit_bias": {str(END): 100}},
    "echo": ECHO,
    **vary("echo", None, "yes"),
    "echo in a stream": ECHO | USAGE,
    "echo of tokens": ECHO | {"prompt": [4078, 639, 258, 551]},
    "echo of two prompts": ECHO | PROMPTS,
    "echo of two prompts in a stream": ECHO | PROMPTS | USAGE,
    "echo of two": ECHO | TWO,
    "echo with logprobs 0": ECHO | {"logprobs": 0},
    "echo with logprobs 1": ECHO | {"logprobs": 1},
    "echo with logprobs in a stream": ECHO | {"logprobs": 1} | USAGE,
    "echo and max_tokens 0": ECHO | {"max_tokens": 0},
    "echo and max_tokens 0 in a stream": ECHO | {"max_tokens": 0} | USAGE,
    "echo and max_tokens 0 with logprobs": ECHO | {"max_tokens": 0, "logprobs": 1},
    "echo and max_tokens 0 with logprobs in a stream": ECHO | {"max_tokens": 0, "logprobs": 1} | USAGE,
    "echo and max_tokens 0 with token ids": ECHO | {"max_tokens": 0, "return_token_ids": True},
    "echo with token ids": ECHO | {"return_token_ids": True},
    "echo with token ids in a stream": ECHO | {"return_token_ids": True} | USAGE,
    "echo with prompt_logprobs": ECHO | {"prompt_logprobs": 1, "logprobs": 2},
    "echo with a stop string of the prompt": ECHO | {"stop": "upon"},
    "echo with the end of text": ECHO | {"prompt": "The end.<|endoftext|>Once"},
    **vary("suffix", " The end.", "", None),
    "messages instead of a prompt": {"prompt": ABSENT} | user("Who is there?"),
    **vary("max_completion_tokens", 2),
    **vary("top_logprobs", 2),
}

CHATS = {
    "length absent": {"max_tokens": ABSENT, "stop": "but I"},
    "length absent, up to the context": {"max_tokens": ABSENT, "allowed_token_ids": [44]},
    "max_completion_tokens": {"max_tokens": ABSENT, "max_completion_tokens": 4},
    **vary("max_completion_tokens", 4, 0, -1, CONTEXT + 1, "many"),
    **vary("messages", ABSENT, None, [], "Who is there?", ["Who is there?"]),
    **vary("messages", [{"content": "Who is there?"}], [{"role": "user"}]),
    "message with null content": user(None),
    "message with empty content": user(""),
    "message with a number for content": user(5),
    "role of a wrong type": user("Who is there?", role=5),
    "system and user": {"messages": turns(("system", "In the forest."), ("user", "Who is there?"))},
    "three turns": {"messages": TALK},
    "last turn of the assistant": ANSWER_BEGUN,
    "assistant with null content": {"messages": turns(("assistant", None), ("user", "Come in."))},
    "developer": user("Who is there?", role="developer"),
    "unknown role": user("Who is there?", role="wolf"),
    "name": user("Who is there?", name="Alice"),
    "unknown field of a message": user("Who is there?", mood="afraid"),
    "content of one part": user([{"type": "text", "text": "Who is there?"}]),
    "content of two parts": user([{"type": "text", "text": "Who"}, {"type": "text", "text": "is there?"}]),
    "content of no parts": user([]),
    "content of strings": user(["Who", "is there?"]),
    "content part without a type": user([{"text": "Who is there?"}]),
    "content part of an unknown type": user([{"type": "poem", "text": "Who is there?"}]),
    "content part without text": user([{"type": "text"}]),
    "content with an image": user([{"type": "image_url", "image_url": {"url": IMAGE}}]),
    "messages beyond the context": user("King " * (CONTEXT + 100)),
    "messages that leave less than max_tokens": user("King " * (CONTEXT // 2 - 6)),
    "content with the end of text": user("Fin.<|endoftext|>") | {"return_token_ids": True},
    "content with half a surrogate": user("Once \ud83e"),
    **vary("return_prompt_text", True),
    "return_prompt_text in a stream": {"return_prompt_text": True} | STREAM,
    **vary("add_generation_prompt", False),
    "add_generation_prompt false in a stream": {"add_generation_prompt": False} | STREAM,
    "continue_final_message": GOES_ON | {"return_token_ids": True},
    "continue_final_message in a stream": GOES_ON | STREAM,
    "continue_final_message and echo": GOES_ON | ECHO,
    "continue_final_message of the user": {"add_generation_prompt": False, "continue_final_message": True},
    **vary("continue_final_message", True, add_generation_prompt=True),
    **vary("continue_final_message", True),
    **vary("echo", True),
    "add_special_tokens": {"add_special_tokens": True, "return_token_ids": True},
    **vary("chat_template", "{{ messages[0].content }}"),
    **vary("chat_template_kwargs", {"add_generation_prompt": False}),
    **vary("logprobs", True, False, None, 1, 5, "perhaps"),
    **vary("top_logprobs", 0, 1, 5, 21, -1, -2, None, "1", logprobs=True),
    **vary("top_logprobs", 20, logprobs=True, max_tokens=2),
    **vary("top_logprobs", 1, 0),
    "top_logprobs in a stream": {"logprobs": True, "top_logprobs": 2} | USAGE,
    "top_logprobs of two": {"logprobs": True, "top_logprobs": 1} | TWO,
    "logprobs with tokens as ids": {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True},
    "logprobs of half a character": {"logprobs": True, "top_logprobs": 1, "allowed_token_ids": [172, 254]},
    "logprobs up to the end of text": {"logprobs": True, "logit_bias": {str(END): 100}},
    **vary("tools", [], None, 5, [5]),
    **vary("tool_choice", "none", "auto", "required", NOW),
    **vary("tool_choice", "none", "auto", "maybe", {"type": "function"}, 5, tools=TOOLS),
    "tools without a choice": {"tools": TOOLS},
    "a named tool with structured output": NAMED | {"structured_outputs": {"regex": "a"}},
    "a call and its result": {
        "messages": [
            *turns(("user", "What time is it?")),
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "1", "content": "noon"},
        ]
    },
    "prompt instead of messages": {"messages": ABSENT, "prompt": "Once"},
}

SAMPLED = {
    "sampled": DRAW,
    "sampled with a seed": DRAW | {"seed": 1},
    "sampled without a temperature": DRAW | {"temperature": ABSENT},
    "sampled with a null temperature": DRAW | {"temperature": None},
    "sampled with all limits": DRAW | {"top_k": 50, "top_p": 0.9, "min_p": 0.01, "seed": -(2**63)},
    "sampled with min_p 0 and top_p null": DRAW | {"min_p": 0, "top_p": None, "seed": INT64_MAX},
    "sampled at a tiny temperature, which counts as 0.01": DRAW | {"temperature": 1e-9},
    "sampled in a stream": DRAW | USAGE,
    "two sampled": DRAW | {"n": 2, "seed": 1},
    "three sampled in a stream": DRAW | {"n": 3} | USAGE,
}

TWO_ENDS = {"add_generation_prompt": True, "continue_final_message": True}
MESSAGES = {"prompt": ABSENT} | user("Who is there?")
TOKENIZES = {
    "plain": {},
    **vary("model", ABSENT, "gpt-5"),
    **vary("prompt", "", ABSENT, None, ["Once", "upon"], [4078, 639], 5, "The end.<|endoftext|>"),
    **vary("prompt", "Ä 日本 🦊", "Once \ud83e"),
    "beyond the context": {"prompt": "King " * (CONTEXT // 2 + 10)},
    **vary("add_special_tokens", False),
    **vary("return_token_strs", True, None),
    "return_token_strs of other scripts": {"prompt": "Ä 🦊\n", "return_token_strs": True},
    "messages": MESSAGES,
    "messages without a generation prompt": MESSAGES | {"add_generation_prompt": False},
    "messages with token strings": MESSAGES | {"return_token_strs": True},
    "messages continued": GOES_ON | {"prompt": ABSENT} | {"messages": turns(("assistant", "I am the"))},
    "messages continued with a generation prompt": MESSAGES | TWO_ENDS,
    "messages empty": {"prompt": ABSENT, "messages": []},
    "messages and a prompt": user("Who is there?"),
    **vary("poetry", True),
}

DETOKENIZES = {
    "plain": {},
    **vary("model", ABSENT, "gpt-5"),
    **vary("tokens", [], ABSENT, None, 5, ["King"], ["735"], [1.5], [-1], [KING, END], [VOCAB], [2**40]),
    **vary("tokens", [2**63], [172]),
    "beyond the context": {"tokens": [44] * (CONTEXT + 1)},
    **vary("poetry", True),
}

# To servers with --enable-auto-tool-choice --tool-call-parser hermes
TOOL_CALLS = {
    **vary("tool_choice", "auto", "none", "required", NOW, max_tokens=60),
    **vary("tool_choice", "auto", "required", NOW, max_tokens=60, **USAGE),
    **vary("tool_choice", OTHER),
    "a choice left out": {"max_tokens": 60},
}

RESPONSES = {
    "plain": {},
    "stream": STREAM,
    **vary("model", ABSENT, None, "gpt-5"),
    **vary("input", ABSENT, None, "", [], 5, turns(("user", "Who is there?"))),
    **vary("input", turns(("user", [{"type": "input_text", "text": "Who is there?"}])), ["Who"]),
    "three turns": {"input": TALK},
    "a message with its type": {"input": [{"type": "message", "role": "user", "content": "Who is there?"}]},
    "an image": {"input": turns(("user", [{"type": "input_image", "image_url": IMAGE}]))},
    "beyond the context": {"input": "King " * (CONTEXT + 100)},
    **vary("instructions", "You are a fox.", None, "", 5),
    "instructions in a stream": {"instructions": "You are a fox."} | STREAM,
    **vary("max_output_tokens", ABSENT, 1, 0, -1, CONTEXT + 1, "many"),
    **vary("temperature", 2.1, -0.1, "hot"),
    **vary("top_p", 1, 0, 1.1),
    **vary("text", {}, *({"format": {"type": kind}} for kind in ("text", "poem", "json_schema"))),
    "a schema": HERO_TEXT | {"max_output_tokens": 40},
    "a schema in a stream": HERO_TEXT | STREAM,
    "an object": {"text": {"format": {"type": "json_object"}}, "max_output_tokens": 40},
    **vary("store", True, False),
    **vary("previous_response_id", "resp_1"),
    **vary("background", True),
    **vary("metadata", {"who": "ada"}, 5),
    **vary("top_logprobs", 2, 21),
    **vary("include", ["message.output_text.logprobs"], top_logprobs=2),
    **vary("user", "ada"),
    **vary("tools", []),
    **vary("tool_choice", "auto", "none", "required"),
    **vary("truncation", "disabled", "auto"),
    **vary("poetry", True),
}
