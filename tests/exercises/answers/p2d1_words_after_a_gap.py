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


def gap_by_walking(prompt_length, i):
    offset = prompt_length  # before the loop
    new = prompt_length
    for _ in range(i + 1):
        offset += new
        new = 1
    return offset


NEW = "new = [token]"
RIGHT = [{"generate": offset_in_two_places, "wrong_place": gap_by_walking}]
WRONG = {"changes-its-input": {NEW: f"{NEW}\n        prompt_ids.append(token)"}}
