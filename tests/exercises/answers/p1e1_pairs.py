from collections import Counter


def merge_by_iterator(tokens, pair, new_id):
    out, rest = [], list(tokens)
    while rest:
        first = rest.pop(0)
        if rest and (first, rest[0]) == pair:
            rest.pop(0)
            first = new_id
        out.append(first)
    return out


def merge_slicing_in_a_range(tokens, pair, new_id):
    """The range ends where the list ended at first: an IndexError, as soon as there was a merge."""
    merged = list(tokens)
    for i in range(len(merged) - 1):
        if merged[i] == pair[0] and merged[i + 1] == pair[1]:
            merged[i] = new_id
            del merged[i + 1]
    return merged


RIGHT = [(lambda tokens: Counter(zip(tokens, tokens[1:])), merge_by_iterator)]
WRONG = {
    "merge-while-going-over-it": {"merge": merge_slicing_in_a_range},
    "changes-its-input": [
        {
            "for pair in zip(tokens, tokens[1:]):": "while len(tokens) > 1:\n        pair = tokens.pop(0), tokens[0]"
        },
        {
            "merged.append(new_id)\n            i += 2": "tokens[i : i + 2] = [new_id]\n            i += 1",
            "merged.append(tokens[i])": "pass",
            "return merged": "return tokens",
        },
    ],
}
