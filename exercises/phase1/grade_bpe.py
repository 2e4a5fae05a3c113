"""Graders of pair counting and merging, and of encoding with ranks."""

import random
from collections.abc import Callable

from exercises.judging.judge import Exercise
from exercises.judging.sources import Slip

# ---------------------------------------------------------------------- 1.1 pairs


def _sliced(pairs: str, of: str = "tokens") -> Slip:
    """A loop over the pairs, which puts the new token into a list on the way."""
    body = f"for i, p in enumerate({pairs}):\n        if p == pair:\n            {of}[i : i + 2] = [new_id]\n    return {of}"
    return IMPORT | {"merged = []": f"merged = list(tokens)\n    {body}"}


IMPORT = {"from exercises.grading import check, hint": "from itertools import pairwise"}
ADDED, TEXTS = "merged.append(tokens[i])", ('" ".join(map(str, tokens))', '" ".join(map(str, pair))')
PAIRS, MATCH = "zip(tokens, tokens[1:])", "tuple(tokens[i : i + 2]) == pair"


def _skipping(found: str) -> Slip:
    """Pairs for which `found` sets `last` to None are not counted."""
    loop = f"for pair in {PAIRS}:\n"
    return {loop: f"last = None\n    {loop}        {found}\n        if last is None:\n            continue\n"}


MERGES = Exercise(
    "p1e1_pairs",
    count_pairs={
        "pairs-step-by-two": {PAIRS: "zip(tokens[::2], tokens[1::2])"},
        "pairs-last-missing": {PAIRS: "zip(tokens, tokens[1:-1])"},
        "pairs-wrap-around": {PAIRS: "zip(tokens[-1:] + tokens, tokens)"},
        "pairs-without-order": (
            {PAIRS: f"map(tuple, map(sorted, {PAIRS}))"},
            {PAIRS: "zip(tokens[1:], tokens)"},
        ),
        # As str.count does: "aaa" holds "aa" once. Or two tokens are skipped after an equal pair: "aab" has no "ab".
        "pairs-overlap-left-out": (
            _skipping("last = None if pair == last and pair[0] == pair[1] else pair"),
            _skipping("last = None if last and last[0] == last[1] else pair"),
        ),
        "pairs-counted-once": {"counts.get(pair, 0) + 1": "1"},
        "pairs-one-too-many": {"counts.get(pair, 0)": "counts.get(pair, 1)"},
    },
    merge={
        "merge-nothing": {MATCH: "tokens[i : i + 2] == pair"},
        "merge-while-going-over-it": (
            _sliced("zip(tokens, tokens[1:])"),  # tokens[1:] is a copy and stays as it was
            _sliced("pairwise(tokens)"),
            _sliced("((tokens[j], tokens[j + 1]) for j in range(len(tokens) - 1))"),
        ),
        "merge-at-old-places": _sliced("pairwise(tokens)", "merged"),
        "merge-over-pairs": {"merged = []": f"return [new_id if p == pair else p[0] for p in {PAIRS}]"},
        "merge-inside-numbers": {
            "merged = []": f"return [*map(int, {TEXTS[0]}.replace({TEXTS[1]}, str(new_id)).split())]"
        },
        "merge-keeps-the-second": {"i += 2": "i += 1"},
        "merge-reads-behind-the-end": {MATCH: "(tokens[i], tokens[i + 1]) == pair"},
        "merge-overlaps": {
            ADDED: f"if not i or tuple(tokens[i - 1 : i + 1]) != pair:\n                {ADDED}",
            "i += 2": "i += 1",
        },
        "merge-first-only": {MATCH: f"{MATCH} and new_id not in merged"},
        "merge-drops-the-last": {"i < len(tokens)": "i < len(tokens) - 1"},
        "merge-from-the-right": {
            "merged = []": "tokens, pair, merged = tokens[::-1], pair[::-1], []",
            "return merged": "return merged[::-1]",
        },
        "merge-in-any-order": {MATCH: "sorted(tokens[i : i + 2]) == sorted(pair)"},
    },
)


@MERGES.grader
def grade_pairs(count_pairs: Callable, merge: Callable) -> None:
    rng = random.Random(1)
    lists = [[1, 2, 3, 1, 2], [7, 7, 7], [7, 7, 7, 7], [], [5], [4, 2], [2, 1, 1, 2]]
    lists += [[rng.randrange(4) for _ in range(rng.randrange(2, 40))] for _ in range(20)]
    MERGES.judge("count_pairs", count_pairs, [(tokens,) for tokens in lists])
    cases = [
        ([1, 2, 3, 1, 2], (1, 2), 9),
        ([7, 7, 7], (7, 7), 9),
        ([7, 7, 7, 7, 7], (7, 7), 9),
        ([], (1, 2), 9),
    ]
    cases += [([5], (5, 5), 9), ([2, 1, 1, 2], (1, 2), 9), ([1, 2, 1], (2, 2), 9)]
    cases += [([11, 2, 1, 2], (1, 2), 256), ([300, 301, 30, 1], (30, 1), 302)]
    for _ in range(30):
        tokens = [rng.randrange(3) for _ in range(rng.randrange(30))]
        cases.append((tokens, (rng.randrange(3), rng.randrange(3)), 9))
    MERGES.judge("merge", merge, cases)


# ---------------------------------------------------------------------- 1.2 encoding


def _table(seed: int) -> dict[bytes, int]:
    """Ranks of tokens of which many can be joined in several ways, so that the order decides. A byte's id is not its value."""
    rng, pieces = random.Random(seed), [bytes([byte]) for byte in b"abcd\xc3\xa9"]
    while len(pieces) < 24:
        piece = rng.choice(pieces) + rng.choice(pieces)
        if piece not in pieces and len(piece) < 7:
            pieces.append(piece)
    return {piece: rank for rank, piece in enumerate(pieces)}


LOOP = "    while True:\n"
LONGEST = """    ids = []
    while word:
        end = next(end for end in range(len(word), 0, -1) if word[:end] in ranks)
        ids.append(ranks[word[:end]])
        word = word[end:]
    return ids
"""
ONE_PASS = """    i = 0
    while i + 1 < len(parts):
        join = parts[i] + parts[i + 1] in ranks
        parts[i : i + 1 + join] = [b"".join(parts[i : i + 1 + join])]
        i += not join
    return [ranks[part] for part in parts]
"""
IDS, JOINED = "[ranks[part] for part in parts]", "[parts[i] + parts[i + 1]]"
ENCODE = Exercise(
    "p1e2_encode",
    encode={
        "encode-longest-first": {LOOP: LONGEST + LOOP},
        "encode-leftmost-first": {"min(joins)": "min(joins, key=lambda join: join[1])"},
        "encode-one-pass": {LOOP: ONE_PASS + LOOP},
        "encode-highest-rank": {"min(joins)": "max(joins, key=lambda join: (join[0], -join[1]))"},
        "encode-stops-after-one": {JOINED: f"{JOINED}\n        return {IDS}"},
        "encode-no-joins": {"if not joins:": "if True:"},
        "encode-rightmost-of-equals": {"min(joins)": "min(joins, key=lambda join: (join[0], -join[1]))"},
        "encode-bytes-are-not-ids": {IDS: "[ranks[part] if len(part) > 1 else part[0] for part in parts]"},
    },
)


@ENCODE.grader
def grade_encode(encode: Callable) -> None:
    by_hand = {b"a": 0, b"b": 1, b"c": 2, b"bc": 3, b"ab": 4, b"abb": 5}
    cases = [(word, by_hand) for word in (b"abc", b"abb", b"abbc", b"abbabc", b"aabcc", b"", b"c")]
    astray = b"a b c d e bc de bcde ab abcde".split()  # from ab none leads to abcde
    cases += [(word, {token: rank for rank, token in enumerate(astray)}) for word in (b"abcde", b"cabcdeab")]
    for seed in range(8):
        rng = random.Random(seed)
        words = [bytes(rng.choices(b"abcd\xc3\xa9", k=rng.randrange(1, 14))) for _ in range(15)]
        cases += [(word, _table(seed)) for word in [*words, b"aaaaaaa", b"abababab"]]
    ENCODE.judge("encode", encode, cases)
