"""Grader of pair counting and merging."""

import random
from collections.abc import Callable
from itertools import pairwise

from exercises.judging.slips import changed
from exercises.judging.solutions import Solution

Pair = tuple[int, int]


def _pairs_not_overlapping(tokens: list[int]) -> dict[Pair, int]:
    """As str.count does: "aaa" holds "aa" once."""
    counts, i = {}, 0
    while i + 1 < len(tokens):
        pair = tokens[i], tokens[i + 1]
        counts[pair] = counts.get(pair, 0) + 1
        i += 2 if tokens[i : i + 1] == tokens[i + 1 : i + 2] == tokens[i + 2 : i + 3] else 1
    return counts


def _merge_overlapping(tokens: list[int], pair: Pair, new_id: int) -> list[int]:
    starts = {i for i, p in enumerate(pairwise(tokens)) if p == pair}
    return [new_id if i in starts else t for i, t in enumerate(tokens) if i in starts or i - 1 not in starts]


def _merge_as_text(tokens: list[int], pair: Pair, new_id: int) -> list[int]:
    text = " ".join(map(str, tokens)).replace(" ".join(map(str, pair)), str(new_id))
    return [int(number) for number in text.split()]


def _slice_while_zipping(tokens: list[int], pair: Pair, new_id: int) -> list[int]:
    for i, p in enumerate(zip(tokens, tokens[1:])):  # tokens[1:] is a copy and stays as it was
        if p == pair:
            tokens[i : i + 2] = [new_id]
    return tokens


def _slice_in_a_range(tokens: list[int], pair: Pair, new_id: int) -> list[int]:
    for i in range(len(tokens) - 1):
        if (tokens[i], tokens[i + 1]) == pair:
            tokens[i : i + 2] = [new_id]
    return tokens


def _slice_a_copy(tokens: list[int], pair: Pair, new_id: int) -> list[int]:
    merged = list(tokens)
    for i, p in enumerate(pairwise(tokens)):
        if p == pair:
            merged[i : i + 2] = [new_id]
    return merged


PAIRS, MATCH = "zip(tokens, tokens[1:])", "tuple(tokens[i : i + 2]) == pair"
EXERCISE = Solution(
    "p1e1_pairs",
    count_pairs={
        "pairs-step-by-two": {PAIRS: "zip(tokens[::2], tokens[1::2])"},
        "pairs-last-missing": {PAIRS: "zip(tokens, tokens[1:-1])"},
        "pairs-wrap-around": {PAIRS: "zip(tokens[-1:] + tokens, tokens)"},
        "pairs-without-order": {PAIRS: f"map(tuple, map(sorted, {PAIRS}))"},
        "pairs-overlap-left-out": _pairs_not_overlapping,
        "pairs-counted-once": {"counts.get(pair, 0) + 1": "1"},
    },
    merge={
        "merge-nothing": {MATCH: "tokens[i : i + 2] == pair"},
        "merge-while-going-over-it": (
            _slice_while_zipping,
            changed(_slice_while_zipping, {"zip(tokens, tokens[1:])": "pairwise(tokens)"}),
            _slice_in_a_range,
        ),
        "merge-at-old-places": _slice_a_copy,
        "merge-over-pairs": lambda tokens, pair, new_id: [
            new_id if p == pair else p[0] for p in pairwise(tokens)
        ],
        "merge-inside-numbers": _merge_as_text,
        "merge-keeps-the-second": {"i += 2": "i += 1"},
        "merge-overlaps": _merge_overlapping,
        "merge-first-only": {MATCH: f"{MATCH} and new_id not in merged"},
        "merge-drops-the-last": {"i < len(tokens)": "i < len(tokens) - 1"},
        "merge-from-the-right": {
            "merged = []": "tokens, pair, merged = tokens[::-1], pair[::-1], []",
            "return merged": "return merged[::-1]",
        },
        "merge-in-any-order": {MATCH: "sorted(tokens[i : i + 2]) == sorted(pair)"},
    },
)


@EXERCISE.grader
def grade_pairs(count_pairs: Callable, merge: Callable) -> None:
    rng = random.Random(1)
    lists = [[1, 2, 3, 1, 2], [7, 7, 7], [7, 7, 7, 7], [], [5], [4, 2], [2, 1, 1, 2]]
    lists += [[rng.randrange(4) for _ in range(rng.randrange(2, 40))] for _ in range(20)]
    EXERCISE.judge("count_pairs", count_pairs, [(tokens,) for tokens in lists])
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
    EXERCISE.judge("merge", merge, cases)
