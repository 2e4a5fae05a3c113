OFFSET, NEW = "offset += len(new)  # once per step, before `new` is replaced", "new = [token]"
RIGHT = {
    OFFSET: "offset = len(prompt_ids) + len(answer)",
    "2 * prompt_length + i": "sum([prompt_length] * 2, i)",
}
WRONG = {"changes-its-input": {NEW: f"{NEW}\n        prompt_ids.append(token)"}}
