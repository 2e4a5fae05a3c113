"""Answers to p1e1_pairs: right ones, and mistakes that learners make, by the diagnosis they must get."""

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


def count_not_overlapping(tokens):
    counts, i = {}, 0
    while i < len(tokens) - 1:
        pair = (tokens[i], tokens[i + 1])
        counts[pair] = counts.get(pair, 0) + 1
        # "aaa" holds aa once, as in str.count
        i += 2 if pair[0] == pair[1] and i + 2 < len(tokens) and tokens[i + 2] == pair[0] else 1
    return counts


def merge_overlapping(tokens, pair, new_id):
    out = []
    for i, token in enumerate(tokens):
        if i + 1 < len(tokens) and (token, tokens[i + 1]) == pair:
            out.append(new_id)
        elif i == 0 or (tokens[i - 1], token) != pair:
            out.append(token)
    return out


def merge_as_text(tokens, pair, new_id):
    text = " ".join(str(t) for t in tokens)
    text = text.replace(f"{pair[0]} {pair[1]}", str(new_id))
    return [int(word) for word in text.split()]


def merge_slicing_while_zipping(tokens, pair, new_id):
    for i, both in enumerate(zip(tokens, tokens[1:])):
        if both == pair:
            tokens[i : i + 2] = [new_id]
    return tokens


def merge_slicing_in_a_range(tokens, pair, new_id):
    """The range ends where the list ended at first: an IndexError, as soon as there was a merge."""
    merged = list(tokens)
    for i in range(len(merged) - 1):
        if merged[i] == pair[0] and merged[i + 1] == pair[1]:
            merged[i] = new_id
            del merged[i + 1]
    return merged


def merge_slicing_a_copy(tokens, pair, new_id):
    out = tokens.copy()
    for i, (left, right) in enumerate(zip(tokens, tokens[1:])):
        if (left, right) == pair:
            out = [*out[:i], new_id, *out[i + 2 :]]
    return out


PAIRS = "zip(tokens, tokens[1:])"
MATCH = "tuple(tokens[i : i + 2]) == pair"
RIGHT = [(lambda tokens: Counter(zip(tokens, tokens[1:])), merge_by_iterator)]
WRONG = {
    "merge-nothing": {MATCH: "tokens[i : i + 2] == pair"},
    "merge-while-going-over-it": [
        {"merge": merge_slicing_while_zipping},
        {"merge": merge_slicing_in_a_range},
    ],
    "merge-at-old-places": {"merge": merge_slicing_a_copy},
    "merge-over-pairs": {
        "merge": lambda tokens, pair, new_id: [new_id if p == pair else p[0] for p in zip(tokens, tokens[1:])]
    },
    "merge-inside-numbers": {"merge": merge_as_text},
    "pairs-changes-its-input": {
        f"for pair in {PAIRS}:": "while len(tokens) > 1:\n        pair = tokens.pop(0), tokens[0]"
    },
    "pairs-step-by-two": {PAIRS: "zip(tokens[::2], tokens[1::2])"},
    "pairs-last-missing": {PAIRS: "zip(tokens, tokens[1:-1])"},
    "pairs-wrap-around": {PAIRS: "zip(tokens[-1:] + tokens, tokens)"},
    "pairs-without-order": {PAIRS: f"map(tuple, map(sorted, {PAIRS}))"},
    "pairs-overlap-left-out": {"count_pairs": count_not_overlapping},
    "pairs-counted-once": {"counts.get(pair, 0) + 1": "1"},
    "merge-keeps-the-second": {"i += 2": "i += 1"},
    "merge-overlaps": {"merge": merge_overlapping},
    "merge-first-only": {MATCH: f"{MATCH} and new_id not in merged"},
    "merge-drops-the-last": {"i < len(tokens)": "i < len(tokens) - 1"},
    "merge-from-the-right": {
        "merged = []": "tokens, pair, merged = tokens[::-1], pair[::-1], []",
        "return merged": "return merged[::-1]",
    },
    "merge-in-any-order": {MATCH: "sorted(tokens[i : i + 2]) == sorted(pair)"},
    "merge-changes-its-input": {
        "merged.append(new_id)\n            i += 2": "tokens[i : i + 2] = [new_id]\n            i += 1",
        "merged.append(tokens[i])": "pass",
        "return merged": "return tokens",
    },
}
