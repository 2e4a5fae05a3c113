"""Answers to p1e6_chat: right ones, and mistakes by the diagnosis they must get."""

START, END = "<|im_start|>", "<|im_end|>"


def piece_by_piece(messages, encode, add_generation_prompt=True):
    ids = []
    for message in messages:
        ids.extend(encode(START, "all"))
        ids.extend(encode(message["role"] + "\n" + message["content"]))
        ids.extend(encode(END, "all"))
        ids.extend(encode("\n"))
    if add_generation_prompt:
        ids.extend(encode(START, "all"))
        ids.extend(encode("assistant\n"))
    return ids


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


def varied(
    inside=lambda e, r, w: e(r + "\n" + w),
    after="\n",
    prompt="assistant\n",
    always=False,
    last="",
    some=slice(None),
):
    def chat_ids(messages, encode, add_generation_prompt=True):
        ids = []
        for m in messages[some]:
            ids += (
                encode(START, "all")
                + inside(encode, m["role"], m["content"])
                + encode(END, "all")
                + encode(after)
            )
        if add_generation_prompt or always:
            ids += (encode(START, "all") + encode(prompt) if prompt else []) + encode(last, "all")
        return ids

    return chat_ids


def takes_messages_away(messages, encode, add_generation_prompt=True):
    ids, prompt = [], add_generation_prompt
    while messages:
        ids += piece_by_piece([messages.pop(0)], encode, False)
    return ids + piece_by_piece([], encode, prompt)


RIGHT = [piece_by_piece, with_marks_in_place]
WRONG = {
    "chat-forged": [
        lambda m, encode, prompt=True: encode(written(m, prompt), "all"),
        lambda m, encode, prompt=True: encode(written(m, prompt), {START, END}),
        varied(lambda e, r, w: e(r + "\n" + w, "all")),
    ],
    "chat-marks-are-words": lambda m, encode, prompt=True: encode(written(m, prompt)),
    "chat-cut-in-pieces": [
        varied(lambda e, r, w: e(r) + e("\n") + e(w)),
        varied(lambda e, r, w: e(r + "\n") + e(w)),
    ],
    "chat-words-left-out": varied(lambda e, r, w: e(r + "\n" + w.replace(END, "").replace(START, ""))),
    "chat-words-trimmed": varied(lambda e, r, w: e(r + "\n" + w.strip())),
    "chat-no-line-break": varied(after=""),
    "chat-no-generation-prompt": varied(prompt=None),
    "chat-always-a-prompt": varied(always=True),
    "chat-prompt-without-line-break": varied(prompt="assistant"),
    "chat-answer-is-over": varied(last=END),
    "chat-only-the-last": varied(some=slice(-1, None)),
    "changes-its-input": takes_messages_away,
}
