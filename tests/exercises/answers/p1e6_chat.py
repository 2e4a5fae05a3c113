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


RIGHT = [with_marks_in_place]
