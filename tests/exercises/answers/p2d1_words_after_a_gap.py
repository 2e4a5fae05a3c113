"""Answers to debugging lab 2: repairs of the loop, and what was said about the cause, by the diagnosis."""

from tests.exercises.changed import changed


def for_loop(step, prompt_ids, max_new_tokens):
    answer = [step(list(prompt_ids), 0)]
    for i in range(1, max_new_tokens):
        answer.append(step(answer[-1:], len(prompt_ids) + i - 1))
    return answer


def offset_in_two_places(step, prompt_ids, max_new_tokens):
    """The least repair: count a token after it was computed."""
    new, offset, answer = list(prompt_ids), 0, []
    token = step(new, offset)
    offset += len(new)
    while True:
        answer.append(token)
        if len(answer) == max_new_tokens:
            return answer
        new = [token]
        token = step(new, offset)
        offset += 1


def from_the_text(step, prompt_ids, max_new_tokens):
    """No offset at all: the place of the last token is the length of the text less one."""
    text = list(prompt_ids)
    text.append(step(list(prompt_ids), 0))
    while len(text) < len(prompt_ids) + max_new_tokens:
        text.append(step([text[-1]], len(text) - 1))
    return text[len(prompt_ids) :]


def gap(prompt_length, i):
    return prompt_length + prompt_length + i


def gap_by_walking(prompt_length, i):
    offset = prompt_length  # before the loop
    new = prompt_length
    for _ in range(i + 1):
        offset += new
        new = 1
    return offset


def new_never_changes_length(step, prompt_ids, max_new_tokens):
    offset, answer, new = 0, [], list(prompt_ids)
    for _ in range(max_new_tokens):
        answer.append(step(new, offset))
        new, offset = [answer[-1]], offset + len(prompt_ids)
    return answer


def one_behind(step, prompt_ids, max_new_tokens):
    answer = [step(list(prompt_ids), 0)]
    while len(answer) < max_new_tokens:
        answer.append(step([answer[-1]], len(prompt_ids) + len(answer) - 2))
    return answer


def other_line_taken_out(step, prompt_ids, max_new_tokens):
    """Both taken out, and the answer counted from 0."""
    answer = [step(list(prompt_ids), 0)]
    for i in range(max_new_tokens - 1):
        answer.append(step([answer[-1]], i))
    return answer


def without_cache(step, prompt_ids, max_new_tokens):
    text = list(prompt_ids)
    for _ in range(max_new_tokens):
        text.append(step(text, 0))
    return text[len(prompt_ids) :]


def one_more(step, prompt_ids, max_new_tokens):
    new, offset, answer = list(prompt_ids), 0, []
    token = step(new, offset)
    while len(answer) < max_new_tokens:
        answer.append(token)
        offset += len(new)
        new = [token]
        token = step(new, offset)
    return answer


def appends_to_the_prompt(step, prompt_ids, max_new_tokens):
    start, first = len(prompt_ids), 0
    while len(prompt_ids) < start + max_new_tokens:
        token = step(prompt_ids[first:], first)
        first = len(prompt_ids)
        prompt_ids.append(token)
    return prompt_ids[start:]


RIGHT = [(for_loop, gap), (offset_in_two_places, gap_by_walking), (from_the_text, gap)]
WRONG = {
    "lab-still-jumps": (
        changed(
            offset_in_two_places,
            {"new = [token]": "new, offset = [token], offset + len(new)", "offset += 1": "pass"},
        ),
        gap,
    ),
    "lab-moves-by-the-prompt": (new_never_changes_length, gap),
    "lab-stands-still": (changed(offset_in_two_places, {"offset += 1": "pass"}), gap),
    "lab-one-too-far": (
        changed(
            offset_in_two_places,
            {"new = [token]": "new, offset = [token], offset + 1", "offset += 1": "pass"},
        ),
        gap,
    ),
    "lab-one-behind": (one_behind, gap),
    "lab-starts-again": (other_line_taken_out, gap),
    "lab-everything-again": (without_cache, gap),
    "lab-one-step-too-many": (one_more, gap),
    "lab-prompt-in-the-answer": (
        lambda step, prompt_ids, max_new_tokens: (
            list(prompt_ids) + for_loop(step, prompt_ids, max_new_tokens)
        ),
        gap,
    ),
    "lab-changes-the-prompt": (appends_to_the_prompt, gap),
    "cause-is-the-right-place": (for_loop, lambda n, i: n + i),
    "cause-jumps-each-time": (for_loop, lambda n, i: (i + 2) * n),
    "cause-everything-doubled": (for_loop, lambda n, i: 2 * n + 2 * i),
    "cause-one-too-far": (for_loop, lambda n, i: 2 * n + 1 + i),
    "cause-one-behind": (for_loop, lambda n, i: 2 * n - 1 + i),
}
