"""Grader of exercise 3.3: blocks found again by their names."""

import random
from collections.abc import Callable, Hashable
from typing import Any

from exercises.judging.judge import Exercise, When

Names = Callable[[list[int], int], list[Hashable]]
Find = Callable[[list[int], int, dict[Hashable, int]], list[int]]

A, B, C, D = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]
TEXTS = [
    *([A + B + [9, 10, 11][:more] for more in range(4)], [A + C, B + C], [A + B + D, A + C + D]),
    *([A, [2, 1, 3, 4]], [[1, 23, 4, 5], [12, 3, 4, 5]], [A, A]),
]


def numbered(block_names: Names, _: Find, texts: list[list[int]], size: int) -> list[list[int]]:
    """The names of several texts' blocks as numbers: equal names have equal numbers."""
    numbers: dict[Hashable, int] = {}
    return [[numbers.setdefault(name, len(numbers)) for name in block_names(text, size)] for text in texts]


def found(
    block_names: Names,
    find_prefix: Find,
    tokens: list[int],
    size: int,
    cached: list[tuple[list[int], list[int | None]]],
) -> Any:
    """What is found of a text if a cache holds blocks under the names of another one."""
    known: dict[Hashable, int] = {}
    for text, blocks in cached:
        for name, block in zip(block_names(text, size), blocks):
            if block is not None:
                known.setdefault(name, block)
    blocks = find_prefix(tokens, size, known)
    return blocks if blocks is None else ["a name" if b in known else b for b in blocks]


ENDS = "range(block_size, len(token_ids) + 1, block_size)"
TOKENS = "token_ids[end - block_size : end]"
EXERCISE = Exercise(
    "p3e3_prefix",
    block_names={
        "hash-without-parent": {"hash_block(parent,": 'hash_block(b"",'},
        "partial-block-named": (
            {ENDS: "range(block_size, len(token_ids) + block_size, block_size)"},
            {ENDS: "range(block_size, len(token_ids) + 2, block_size)"},  # if one is lacking
            When(lambda got, want, *_: any(len(a) > len(b) for a, b in zip(got, want))),
        ),
        "full-block-not-named": {ENDS: "range(block_size, len(token_ids), block_size)"},
        "parent-is-not-the-block-before": {"hash_block(parent,": 'hash_block(names[0] if names else b"",'},
        "order-lost": {TOKENS: f"[sum({TOKENS})]"},
        "tokens-run-together": {
            f"hash_block(parent, {TOKENS})": '"".join(map(str, token_ids[:end])).encode()'
        },
    },
    find_prefix={
        "nothing-left-to-compute": {"token_ids[:-1]": "token_ids"},
        "goes-on-after-a-miss": {"break": "continue"},
        "last-block-given-away": {
            "(token_ids[:-1], block_size)": "(token_ids, block_size)[: len(token_ids) // block_size - 1]"
        },
        "names-in-place-of-blocks": {"cached[name]": "name"},
    },
)


def _random_cases(seed: int) -> list[tuple]:
    """Random texts with common beginnings. Of each, all that came before it are in the cache."""
    rng, size = random.Random(seed), (1, 2, 4)[seed % 3]
    texts = [[rng.randrange(3) for _ in range(rng.randint(1, 4 * size))] for _ in range(12)]
    for text in list(texts):
        texts.append(
            text[: rng.randint(1, len(text))] + [rng.randrange(3) for _ in range(rng.randint(0, 2 * size))]
        )
    cached = [(text, [100 * n + i for i in range(len(text) // size)]) for n, text in enumerate(texts)]
    return [(text, size, cached[:n]) for n, text in enumerate(texts)]


@EXERCISE.grader
def grade_prefix(block_names: Names, find_prefix: Find) -> None:
    both, answers = ("block_names", "find_prefix"), (block_names, find_prefix)
    names = [(texts, 4) for texts in TEXTS]
    cases = [case for seed in range(9) for case in _random_cases(seed)]
    names += [([text], size) for text, size, _ in cases]
    only = [diagnosis for diagnosis, _ in EXERCISE.mistakes["block_names"]]
    EXERCISE.judge(both, answers, names, play=numbered, only=only)
    cached, gap = [(A + B + C, [7, 3, 9])], [(A + B + C, [7, None, 9])]
    by_hand = [(A + B + C + [99], 4, cached), (A + B + C, 4, cached), (A + B + C + [99], 4, gap)]
    by_hand += [(tokens, 4, cached) for tokens in ([], [1], A[:3], [*D, 1])]

    def show(tokens: list[int], size: int, cached: list) -> str:
        return f"find_prefix({tokens}, {size}, cached), and the cache holds (tokens, their blocks): {cached[-3:]}"

    EXERCISE.judge(both, answers, [*by_hand, *cases], play=found, show=show)
