"""Grader of encoding with ranks."""

import random
from collections.abc import Callable
from functools import lru_cache

from exercises.judging.solutions import Solution
from phase1_tokens_embeddings.tokens.bpe import count_words, learn_merges


@lru_cache
def _tables() -> list[tuple[dict[bytes, int], list[bytes]]]:
    """Rank tables with words to encode. Single bytes are shuffled: their ids are not their values."""
    small = {b"a": 0, b"b": 1, b"c": 2, b"bc": 3, b"ab": 4, b"abb": 5}  # the notebook's
    text = "low low lower lowest slow slower slowly flow flower banana bandana ananas aaaa aaaaaaa hahaha ha na nana"
    merges = learn_merges(count_words([text * 3]), 60)
    pieces = [bytes([b]) for b in range(256)]
    for a, b in merges:
        pieces.append(pieces[a] + pieces[b])
    order = list(range(256))
    random.Random(5).shuffle(order)
    trained = {pieces[b]: rank for rank, b in enumerate(order)}
    trained.update({piece: 256 + i for i, piece in enumerate(pieces[256:])})
    rng = random.Random(2)
    words = [w.encode() for w in text.split()] + [b"", b"a", b"aaaaa", b"lowlow", "é".encode(), b"nananana"]
    words += [bytes(rng.choice(b"lowersnabh") for _ in range(rng.randrange(1, 14))) for _ in range(30)]
    tables = [(small, [b"abc", b"abb", b"abbc", b"abbabc", b"aabcc", b"", b"c"]), (trained, words)]
    for _ in range(4):  # a table in which much can be joined, so that the order decides
        pieces = [b"a", b"b", b"c", b"d"]
        while len(pieces) < 16:
            piece = rng.choice(pieces) + rng.choice(pieces)
            if piece not in pieces and len(piece) < 6:
                pieces.append(piece)
        random_words = [bytes(rng.choice(b"abcd") for _ in range(rng.randrange(2, 12))) for _ in range(15)]
        tables.append(({piece: rank for rank, piece in enumerate(pieces)}, random_words))
    return tables


def _longest_match(word: bytes, ranks: dict[bytes, int]) -> list[int]:
    ids, i = [], 0
    while i < len(word):
        end = next(end for end in range(len(word), i, -1) if word[i:end] in ranks)
        ids.append(ranks[word[i:end]])
        i = end
    return ids


def _one_pass(word: bytes, ranks: dict[bytes, int]) -> list[int]:
    parts, i = [word[i : i + 1] for i in range(len(word))], 0
    while i + 1 < len(parts):
        if parts[i] + parts[i + 1] in ranks:
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        else:
            i += 1
    return [ranks[part] for part in parts]


IDS, JOINED = "[ranks[part] for part in parts]", "[parts[i] + parts[i + 1]]"
EXERCISE = Solution(
    "p1e2_encode",
    encode={
        "encode-longest-first": _longest_match,
        "encode-leftmost-first": {"min(joins)": "min(joins, key=lambda join: join[1])"},
        "encode-one-pass": _one_pass,
        "encode-highest-rank": {"min(joins)": "max(joins, key=lambda join: (join[0], -join[1]))"},
        "encode-stops-after-one": {JOINED: f"{JOINED}\n        return {IDS}"},
        "encode-no-joins": {"if not joins:": "if True:"},
        "encode-rightmost-of-equals": {"min(joins)": "min(joins, key=lambda join: (join[0], -join[1]))"},
        "encode-bytes-are-not-ids": {IDS: "[ranks[part] if len(part) > 1 else part[0] for part in parts]"},
    },
)


@EXERCISE.grader
def grade_encode(encode: Callable) -> None:
    EXERCISE.judge("encode", encode, [(word, ranks) for ranks, words in _tables() for word in words])
