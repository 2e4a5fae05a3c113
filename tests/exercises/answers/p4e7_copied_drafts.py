"""Answers to exercise 4.7."""

from tests.exercises.changed import changed


def right(tokens, least, most, k):
    for length in range(most, least - 1, -1):
        if length >= len(tokens):
            continue
        ending = tokens[-length:]
        for place in range(len(tokens) - length):
            if tokens[place : place + length] == ending:
                return tokens[place + length : place + length + k]
    return []


def right_place_by_place(tokens, least, most, k):
    """How far back do the tokens before each place agree with the ending? The longest wins, then the first."""
    best, follows = 0, None
    for end in range(1, len(tokens)):
        length = 0
        while length < min(most, end) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= least and length > best:
            best, follows = length, end
    return [] if follows is None else tokens[follows : follows + k]


def right_as_text(tokens, least, most, k):
    text = "".join(chr(token) for token in tokens)
    for length in range(min(most, len(text) - 1), least - 1, -1):
        place = text.find(text[-length:])
        if place < len(text) - length:
            return tokens[place + length :][:k]
    return []


def latest(tokens, least, most, k):
    for length in range(min(most, len(tokens) - 1), least - 1, -1):
        for place in range(len(tokens) - length - 1, -1, -1):
            if tokens[place : place + length] == tokens[-length:]:
                return tokens[place + length :][:k]
    return []


def itself(tokens, least, most, k):
    for length in range(min(most, len(tokens) - 1), least - 1, -1):
        for place in range(len(tokens) - 1, -1, -1):
            if tokens[place : place + length] == tokens[-length:]:
                return tokens[place + length :][:k]
    return []


def by_the_most_only(tokens, least, most, k):
    for place in range(len(tokens) - most):
        if tokens[place : place + most] == tokens[-most:]:
            return tokens[place + most :][:k]
    return []


LOOP = "for length in range(most, least - 1, -1):"
RIGHT = [right, right_place_by_place, right_as_text]
WRONG = {
    "last-place": latest,
    "shortest-ending": changed(right, {LOOP: "for length in range(least, most + 1):"}),
    "ignores-the-minimum": changed(right, {LOOP: "for length in range(most, 0, -1):"}),
    "ignores-the-maximum": changed(right, {LOOP: "for length in range(len(tokens), least - 1, -1):"}),
    "only-the-maximum": by_the_most_only,
    "finds-itself": itself,
    "overlap-missed": changed(
        right, {"range(len(tokens) - length):": "range(len(tokens) - 2 * length + 1):"}
    ),
    "wants-all-k": changed(right, {"== ending:": "== ending and place + length + k <= len(tokens):"}),
    "proposes-the-ending": changed(
        right, {"tokens[place + length : place + length + k]": "tokens[place : place + k]"}
    ),
    "more-than-k": changed(
        right, {"tokens[place + length : place + length + k]": "tokens[place + length :]"}
    ),
    "returns-nothing": changed(right, {"return []": "return None"}),
}
