"""Grader of exercise 3.3: blocks found again by their names."""

import random
from collections.abc import Callable, Hashable

from exercises.grading import Diagnoses, Exercise, expect_equal, guard
from phase3_paged_attention.paging import BlockManager, BlockTable

SAYS = Diagnoses.of("p3e3_prefix")

Names = Callable[[list[int], int], list[Hashable]]
Find = Callable[[list[int], int, dict[Hashable, int]], list[int]]

A, B, C, D = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]
OTHER_NAMES = {  # two texts, and the number of a block that needs another name in each of them
    "hash-without-parent": (A + C, B + C, 1),
    "parent-is-not-the-block-before": (A + B + D, A + C + D, 2),
    "order-lost": (A, [2, 1, 3, 4], 0),
    "tokens-run-together": ([1, 23, 4, 5], [12, 3, 4, 5], 0),
}


def grade_prefix(block_names: Names, find_prefix: Find) -> str:
    _names_by_hand(block_names)
    _finds_by_hand(block_names, find_prefix)
    for seed in range(20):
        _like_the_manager(block_names, find_prefix, seed)
    return "A few texts by hand, and 480 random ones that begin alike, beside the course's own BlockManager."


def _names(block_names: Names, tokens: list[int], size: int = 4) -> list[Hashable]:
    tried = f"block_names({tokens}, {size})"
    names = list(guard(block_names, list(tokens), size, tried=tried))
    guard(dict.fromkeys, names, tried=tried + ", used as keys of a dict")
    return names


def _names_by_hand(block_names: Names) -> None:
    names = _names(block_names, A + B)
    expect_equal(len(names), 2, tried=f"len(block_names({A + B}, 4))")
    for rest in ([9], [9, 10], [9, 10, 11]):
        tokens = A + B + rest
        more = _names(block_names, tokens)
        if len(more) == 3:
            raise SAYS.no("partial-block-named", f"block_names({tokens}, 4)", "3 names", "2 names")
        expect_equal(more == names, True, tried=f"the names of {tokens} are those of {A + B}")
    tried = f"block_names twice with {A + B}"
    expect_equal(_names(block_names, A + B) == names, True, tried=f"{tried}: the same names")
    for diagnosis, (one, two, i) in OTHER_NAMES.items():
        if _names(block_names, one)[i] == _names(block_names, two)[i]:
            raise SAYS.no(diagnosis, f"the name of block {i} of {one} and of {two}", "one name", "two names")


def _finds_by_hand(block_names: Names, find_prefix: Find) -> None:
    names = _names(block_names, A + B + C)
    cached = dict(zip(names, (7, 3, 9), strict=True))
    gap = {names[0]: 7, names[2]: 9}
    text = "the cache holds blocks 7, 3, 9 for the tokens 1 to 12"

    def find(tokens: list[int], known: dict[Hashable, int], what: str) -> list[int]:
        got = guard(find_prefix, list(tokens), 4, dict(known), tried=what)
        return got if got is None else list(got)

    what = f"find_prefix of the tokens 1 to 12 and another one; {text}"
    got = find(A + B + C + [99], cached, what)
    if got == [7, 3]:
        raise SAYS.no("last-block-given-away", what, got, [7, 3, 9])
    if got and got == names[: len(got)]:
        raise SAYS.no("names-in-place-of-blocks", what, "names of blocks", [7, 3, 9])
    expect_equal(got, [7, 3, 9], tried=what)
    what = f"find_prefix of the tokens 1 to 12; {text}"
    got = find(A + B + C, cached, what)
    if got == [7, 3, 9]:
        raise SAYS.no("nothing-left-to-compute", what, got, [7, 3])
    expect_equal(got, [7, 3], tried=what)
    what = "find_prefix of the tokens 1 to 12 and another one; the second block was evicted"
    got = find(A + B + C + [99], gap, what)
    if got == [7, 9]:
        raise SAYS.no("goes-on-after-a-miss", what, got, [7])
    expect_equal(got, [7], tried=what)
    for tokens in ([], [1], A[:3], [*D, 1]):
        what = f"find_prefix({tokens}, 4, ...); {text}"
        expect_equal(find(tokens, cached, what), [], tried=what)


def _like_the_manager(block_names: Names, find_prefix: Find, seed: int) -> None:
    """Random texts with common beginnings, against the course's own BlockManager."""
    rng, size = random.Random(seed), (1, 2, 4)[seed % 3]
    manager, cached = BlockManager(400, size), {}
    texts = [[rng.randrange(3) for _ in range(rng.randint(1, 4 * size))] for _ in range(12)]
    for text in list(texts):
        texts.append(
            text[: rng.randint(1, len(text))] + [rng.randrange(3) for _ in range(rng.randint(0, 2 * size))]
        )
    for text in texts:
        table = BlockTable()
        found = manager.match_prefix(table, text)
        what = f"texts with common beginnings in blocks of {size} (seed {seed}); find_prefix({text}, {size}, ...)"
        got = guard(find_prefix, list(text), size, dict(cached), tried=what)
        expect_equal(None if got is None else list(got), [b.block_id for b in found], tried=what)
        manager.allocate(table, text, len(text), found)
        names = _names(block_names, text, size)
        expect_equal(len(names), len(text) // size, tried=f"len(block_names({text}, {size}))")
        for name, block in zip(names, table.block_ids):
            cached.setdefault(name, block)


EXERCISES = [
    Exercise("p3e3_prefix", ("block_names", "find_prefix"), grade_prefix),
]
