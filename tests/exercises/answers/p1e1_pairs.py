"""Answers to p1e1_pairs: two right ones, and mistakes that learners make, by the diagnosis they must get."""

from collections import Counter

from tests.exercises.changed import changed


def count(tokens):
    return Counter(zip(tokens, tokens[1:]))


def count_by_index(tokens):
    counts = {}
    for i in range(1, len(tokens)):
        pair = (tokens[i - 1], tokens[i])
        counts.setdefault(pair, 0)
        counts[pair] += 1
    return counts


def merge(tokens, pair, new_id):
    out = []
    for token in tokens:
        # `fresh` tokens must not be merged again; they are marked by being wrapped.
        if out and out[-1] == pair[0] and token == pair[1] and not isinstance(out[-1], New):
            out[-1] = New(new_id)
        else:
            out.append(token)
    return [int(t) for t in out]


class New(int):
    """A token made by this merge."""


def merge_by_index(tokens, pair, new_id):
    out, i = [], 0
    while i < len(tokens):
        if tuple(tokens[i : i + 2]) == pair:
            out.append(new_id)
            i += 2
        else:
            out.append(tokens[i])
            i += 1
    return out


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
        elif i > 0 and (tokens[i - 1], token) == pair:
            continue
        else:
            out.append(token)
    return out


def merge_first(tokens, pair, new_id):
    for i in range(len(tokens) - 1):
        if (tokens[i], tokens[i + 1]) == pair:
            return [*tokens[:i], new_id, *tokens[i + 2 :]]
    return tokens


def merge_from_end(tokens, pair, new_id):
    out = list(tokens)
    i = len(out) - 2
    while i >= 0:
        if (out[i], out[i + 1]) == pair:
            out[i : i + 2] = [new_id]
            i -= 1
        i -= 1
    return out


def merge_in_place(tokens, pair, new_id):
    i = 0
    while i < len(tokens) - 1:
        if (tokens[i], tokens[i + 1]) == pair:
            tokens[i : i + 2] = [new_id]
        i += 1
    return tokens


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


def merge_over_pairs(tokens, pair, new_id):
    out = []
    for left, right in zip(tokens, tokens[1:]):
        if (left, right) == pair:
            out.append(new_id)
        else:
            out.append(left)
    return out


def count_by_popping(tokens):
    counts = {}
    while len(tokens) > 1:
        left = tokens.pop(0)
        counts[left, tokens[0]] = counts.get((left, tokens[0]), 0) + 1
    return counts


RIGHT = [(count, merge), (count_by_index, merge_by_iterator)]
WRONG = {
    "merge-nothing": (count, changed(merge_by_index, {"tuple(tokens[i : i + 2])": "tokens[i : i + 2]"})),
    "merge-while-going-over-it": [(count, merge_slicing_while_zipping), (count, merge_slicing_in_a_range)],
    "merge-at-old-places": (count, merge_slicing_a_copy),
    "merge-over-pairs": (count, merge_over_pairs),
    "merge-inside-numbers": (count, merge_as_text),
    "pairs-changes-its-input": (count_by_popping, merge),
    "pairs-step-by-two": (changed(count_by_index, {"len(tokens)": "len(tokens), 2"}), merge),
    "pairs-last-missing": (changed(count_by_index, {"len(tokens)": "len(tokens) - 1"}), merge),
    "pairs-wrap-around": (changed(count_by_index, {"range(1, ": "range("}), merge),
    "pairs-without-order": (
        lambda tokens: Counter(tuple(sorted(pair)) for pair in zip(tokens, tokens[1:])),
        merge,
    ),
    "pairs-overlap-left-out": (count_not_overlapping, merge),
    "pairs-counted-once": (changed(count_by_index, {"+= 1": "= 1"}), merge),
    "merge-keeps-the-second": (count, changed(merge_by_index, {"i += 2": "i += 1"})),
    "merge-overlaps": (count, merge_overlapping),
    "merge-first-only": (count, merge_first),
    "merge-drops-the-last": (count, changed(merge_by_index, {"len(tokens)": "len(tokens) - 1"})),
    "merge-from-the-right": (count, merge_from_end),
    "merge-in-any-order": (
        count,
        changed(
            merge_by_index, {"tuple(tokens[i : i + 2]) == pair": "sorted(tokens[i : i + 2]) == sorted(pair)"}
        ),
    ),
    "merge-changes-its-input": (count, merge_in_place),
}
