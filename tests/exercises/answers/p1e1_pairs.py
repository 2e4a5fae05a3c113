from collections import Counter

RIGHT = {
    "count_pairs": lambda tokens: Counter(zip(tokens, tokens[1:])),
    "return merged": "return tuple(merged)",
}
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
    ]
}
