"""Grader of pair counting and merging."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from exercises.grading import Diagnoses, Exercise, call
from exercises.judging.judge import judge
from exercises.judging.slips import changed, slips
from phase1_tokens_embeddings.tokens.bpe import merge_pair

SAYS = Diagnoses.of("p1e1_pairs")


def _pairs_not_overlapping(tokens: list[int]) -> dict:
    counts: Counter = Counter()
    i = 0
    while i + 1 < len(tokens):
        counts[tokens[i], tokens[i + 1]] += 1
        i += 2 if tokens[i : i + 1] == tokens[i + 1 : i + 2] == tokens[i + 2 : i + 3] else 1
    return dict(counts)


COUNTING = {
    "pairs-step-by-two": lambda t: dict(Counter(zip(t[::2], t[1::2]))),
    "pairs-last-missing": lambda t: dict(Counter(pairwise(t[:-1]))),
    "pairs-wrap-around": lambda t: dict(Counter((t[i - 1], t[i]) for i in range(len(t)))),
    "pairs-without-order": lambda t: dict(Counter(tuple(sorted(p)) for p in pairwise(t))),
    "pairs-overlap-left-out": _pairs_not_overlapping,
    "pairs-counted-once": lambda t: dict.fromkeys(pairwise(t), 1),
}


def _merge(tokens: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    """As the course's `merge_pair`: the mistakes are slips in this one."""
    merged, i = [], 0
    while i < len(tokens):
        if tuple(tokens[i : i + 2]) == pair:
            merged.append(new_id)
            i += 2
        else:
            merged.append(tokens[i])
            i += 1
    return merged


def _merge_overlapping(tokens: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    starts = {i for i, p in enumerate(pairwise(tokens)) if p == pair}
    return [new_id if i in starts else t for i, t in enumerate(tokens) if i in starts or i - 1 not in starts]


def _merge_as_text(tokens: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    text = " ".join(map(str, tokens)).replace(" ".join(map(str, pair)), str(new_id))
    return [int(number) for number in text.split()]


def _merge_over_pairs(tokens: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    return [new_id if p == pair else p[0] for p in pairwise(tokens)]


def _slice_while_zipping(tokens: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    for i, p in enumerate(zip(tokens, tokens[1:])):  # tokens[1:] is a copy and stays as it was
        if p == pair:
            tokens[i : i + 2] = [new_id]
    return tokens


def _slice_in_a_range(tokens: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    for i in range(len(tokens) - 1):
        if (tokens[i], tokens[i + 1]) == pair:
            tokens[i : i + 2] = [new_id]
    return tokens


def _slice_a_copy(tokens: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    merged = list(tokens)
    for i, p in enumerate(pairwise(tokens)):
        if p == pair:
            merged[i : i + 2] = [new_id]
    return merged


MATCH = "tuple(tokens[i : i + 2]) == pair"
MERGING = {
    "merge-nothing": lambda tokens, pair, new_id: tokens,
    "merge-while-going-over-it": (
        _slice_while_zipping,
        changed(_slice_while_zipping, {"zip(tokens, tokens[1:])": "pairwise(tokens)"}),
        _slice_in_a_range,
    ),
    "merge-at-old-places": _slice_a_copy,
    "merge-over-pairs": _merge_over_pairs,
    "merge-inside-numbers": _merge_as_text,
    "merge-keeps-the-second": {"i += 2": "i += 1"},
    "merge-overlaps": _merge_overlapping,
    "merge-first-only": {MATCH: f"{MATCH} and new_id not in merged"},
    "merge-drops-the-last": {"i < len(tokens)": "i < len(tokens) - 1"},
    "merge-from-the-right": lambda t, p, new_id: _merge(t[::-1], p[::-1], new_id)[::-1],
    "merge-in-any-order": {MATCH: "sorted(tokens[i : i + 2]) == sorted(pair)"},
}


def grade_pairs(count_pairs: Callable, merge: Callable) -> None:
    rng = random.Random(1)
    lists = [[1, 2, 3, 1, 2], [7, 7, 7], [7, 7, 7, 7], [], [5], [4, 2], [2, 1, 1, 2]]
    lists += [[rng.randrange(4) for _ in range(rng.randrange(2, 40))] for _ in range(20)]
    judge(
        count_pairs,
        [(tokens,) for tokens in lists],
        lambda tokens: dict(Counter(pairwise(tokens))),
        COUNTING,
        SAYS,
        show=lambda tokens: f"count_pairs({tokens})",
        keeps_input=False,  # see below
    )
    cases = [
        ([1, 2, 3, 1, 2], (1, 2), 9),
        ([7, 7, 7], (7, 7), 9),
        ([7, 7, 7, 7, 7], (7, 7), 9),
        ([], (1, 2), 9),
    ]
    cases += [([5], (5, 5), 9), ([2, 1, 1, 2], (1, 2), 9), ([1, 2, 1], (2, 2), 9)]
    cases += [([11, 2, 1, 2], (1, 2), 256), ([300, 301, 30, 1], (30, 1), 302)]
    cases += [
        ([rng.randrange(3) for _ in range(rng.randrange(30))], (rng.randrange(3), rng.randrange(3)), 9)
        for _ in range(30)
    ]
    judge(
        merge,
        cases,
        merge_pair,
        slips(_merge, MERGING),
        SAYS,
        show=lambda tokens, pair, new_id: f"merge({tokens}, {pair}, {new_id})",
        keeps_input=False,  # see below
    )
    tokens = [1, 2, 1, 2]
    call(count_pairs, tokens)
    if tokens != [1, 2, 1, 2]:
        raise SAYS.no(
            "pairs-changes-its-input", "count_pairs(tokens), then a look at tokens", tokens, [1, 2, 1, 2]
        )
    call(merge, tokens, (1, 2), 9)
    if tokens != [1, 2, 1, 2]:
        raise SAYS.no(
            "merge-changes-its-input", "merge(tokens, (1, 2), 9), then a look at tokens", tokens, [1, 2, 1, 2]
        )


EXERCISES = [
    Exercise("p1e1_pairs", ("count_pairs", "merge"), grade_pairs),
]
