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


RIGHT = [(lambda tokens: Counter(zip(tokens, tokens[1:])), merge_by_iterator)]
WRONG = {
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
