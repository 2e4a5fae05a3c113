"""Answers to debugging lab 2: repairs of the loop, and what was said about the cause, by the diagnosis."""

from tests.exercises.changed import changed


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


def gap_by_walking(prompt_length, i):
    offset = prompt_length  # before the loop
    new = prompt_length
    for _ in range(i + 1):
        offset += new
        new = 1
    return offset


OFFSET = "offset += len(new)  # once for each step, and before `new` becomes another"
NEW = "new = [token]"
ENDS = "        if len(answer) == max_new_tokens:\n            return answer"
PLACE = "2 * prompt_length + i"
RIGHT = [{"generate": offset_in_two_places, "wrong_place": gap_by_walking}, {"generate": from_the_text}]
WRONG = {
    "lab-still-jumps": {
        "generate": changed(
            offset_in_two_places,
            {"new = [token]": "new, offset = [token], offset + len(new)", "offset += 1": "pass"},
        )
    },
    "lab-moves-by-the-prompt": {OFFSET: "offset += len(prompt_ids)"},
    "lab-stands-still": {OFFSET: "offset = len(prompt_ids)"},
    "lab-one-too-far": {
        "generate": changed(
            offset_in_two_places,
            {"new = [token]": "new, offset = [token], offset + 1", "offset += 1": "pass"},
        )
    },
    "lab-one-behind": {OFFSET: "offset = len(prompt_ids) + len(answer) - 1"},
    "lab-starts-again": {OFFSET: "offset = len(answer)"},
    "lab-everything-again": {OFFSET: "pass", NEW: "new = [*new, token]"},
    "lab-one-step-too-many": {
        f"        answer.append(token)\n{ENDS}": f"{ENDS}\n        answer.append(token)"
    },
    "lab-prompt-in-the-answer": {"return answer": "return list(prompt_ids) + answer"},
    "lab-changes-the-prompt": {NEW: f"{NEW}\n        prompt_ids.append(token)"},
    "cause-is-the-right-place": {PLACE: "prompt_length + i"},
    "cause-jumps-each-time": {PLACE: "(i + 2) * prompt_length"},
    "cause-everything-doubled": {PLACE: "2 * prompt_length + 2 * i"},
    "cause-one-too-far": {PLACE: "2 * prompt_length + 1 + i"},
    "cause-one-behind": {PLACE: "2 * prompt_length - 1 + i"},
}
