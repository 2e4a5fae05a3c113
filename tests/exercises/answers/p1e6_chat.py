"""Answers to p1e6_chat: right ones, and mistakes by the diagnosis they must get."""

START, END = "<|im_start|>", "<|im_end|>"


def with_marks_in_place(messages, encode, add_generation_prompt=True):
    """Marks where they belong, each trusted by itself; text between them as one."""
    (start,), (end,) = encode(START, {START}), encode(END, {END})
    ids = [
        i
        for m in messages
        for i in (start, *encode("\n".join((m["role"], m["content"]))), end, *encode("\n"))
    ]
    return [*ids, start, *encode("assistant\n")] if add_generation_prompt else ids


def written(messages, prompt):
    text = ""
    for message in messages:
        text += START + message["role"] + "\n" + message["content"] + END + "\n"
    return text + START + "assistant\n" if prompt else text


WORDS = "{message['content']}"
MESSAGE = r"""encode(f"{message['role']}\n{message['content']}")"""
ANSWER = r'encode("assistant\n")'
PROMPT = "if add_generation_prompt:"
RIGHT = [with_marks_in_place]
WRONG = {
    "chat-forged": [
        lambda m, encode, prompt=True: encode(written(m, prompt), "all"),
        lambda m, encode, prompt=True: encode(written(m, prompt), {START, END}),
        {MESSAGE: MESSAGE.replace('")', '", "all")')},
    ],
    "chat-marks-are-words": lambda m, encode, prompt=True: encode(written(m, prompt)),
    "chat-cut-in-pieces": [
        {MESSAGE: r"""encode(message["role"]) + encode("\n") + encode(message["content"])"""},
        {MESSAGE: r"""encode(message["role"] + "\n") + encode(message["content"])"""},
    ],
    "chat-words-left-out": {WORDS: f"{{message['content'].replace('{END}', '').replace('{START}', '')}}"},
    "chat-words-trimmed": {WORDS: "{message['content'].strip()}"},
    "chat-no-line-break": {r' + encode("\n")': ""},
    "chat-no-generation-prompt": {PROMPT: "if False:"},
    "chat-always-a-prompt": {PROMPT: "if True:"},
    "chat-prompt-without-line-break": {ANSWER: 'encode("assistant")'},
    "chat-answer-is-over": {ANSWER: f"{ANSWER} + end"},
    "chat-only-the-last": {"in messages:": "in messages[-1:]:"},
    "changes-its-input": {"for message in messages:": "while messages:\n        message = messages.pop(0)"},
}
