"""Answers to exercise 4.7."""


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


LENGTHS = "range(min(most, len(tokens) - 1), least - 1, -1)"
PLACES = "range(len(tokens) - length)"
DRAFTS = "tokens[place + length :][:k]"
RIGHT = [right_place_by_place, right_as_text]
WRONG = {
    "last-place": {PLACES: f"reversed({PLACES})"},
    "shortest-ending": {LENGTHS: "range(least, min(most, len(tokens) - 1) + 1)"},
    "ignores-the-minimum": {"least - 1, -1": "0, -1"},
    "ignores-the-maximum": {"min(most, len(tokens) - 1)": "len(tokens) - 1"},
    "only-the-maximum": {LENGTHS: "[most]"},
    "finds-itself": {PLACES: "reversed(range(len(tokens)))"},
    "overlap-missed": {PLACES: "range(len(tokens) - 2 * length + 1)"},
    "wants-all-k": {"== ending:": "== ending and place + length + k <= len(tokens):"},
    "proposes-the-ending": {DRAFTS: "tokens[place : place + k]"},
    "more-than-k": {"[:k]": ""},
    "returns-nothing": {"return []": "return None"},
}
