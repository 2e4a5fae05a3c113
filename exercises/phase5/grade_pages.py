"""Grader of exercise 5.3: which pages a tile needs, and loading their ids one round ahead, interpreted."""

from collections.abc import Callable
from typing import Any

import torch

from exercises.judging.judge import When
from exercises.judging.solutions import Solution
from exercises.phase5.grade_bridges import launch, matrix, memory_of

FIRST = "    pages = tl.load(block_table + lanes // BLOCK_SIZE, mask=lanes < length, other=0)\n"
NEXT = "next_pages = tl.load(block_table + coming // BLOCK_SIZE, mask=coming < length, other=0)"
OWN = "pages = tl.load(block_table + tokens // BLOCK_SIZE, mask=tokens < length, other=0)"
ENTRY, COMING = "lanes // BLOCK_SIZE", "coming // BLOCK_SIZE"
PLACE, EXISTS, PAGE = "tokens % BLOCK_SIZE", "tokens < length", "pages.to(tl.int64) *"
STORE = "        tl.store(out + heads * length + tokens[None, :], scores, mask=(tokens < length)[None, :])\n"
SECOND = "(lanes + TILE) // BLOCK_SIZE, mask=lanes + TILE < length"
JUST_IN_TIME = {FIRST: "", NEXT: OWN, "        pages = next_pages\n": ""}
EXERCISE = Solution(
    "p5e3_page_ids",
    20.0,
    tile_scores={
        "tile-as-page": {ENTRY: "lanes // TILE", COMING: "coming // TILE"},
        "one-page-for-the-tile": {ENTRY: "(lanes * 0)", COMING: "((first + TILE) // BLOCK_SIZE + lanes * 0)"},
        "start-forgotten": {COMING: ENTRY},
        "offset-in-the-tile": {PLACE: "lanes"},
        "offset-not-modulo": {PLACE: "tokens"},
        "one-lane-too-many": {EXISTS: "tokens <= length"},
        "whole-last-page": {EXISTS: "tokens // BLOCK_SIZE <= (length - 1) // BLOCK_SIZE"},
        "valid-counts-lanes": {EXISTS: "lanes < length"},
        "all-valid": {EXISTS: "tokens >= 0"},
        "reads-beyond-the-table": (
            {"coming < length": "tokens < length"},
            When(lambda got, *_: got["entries read"] > got["own entries read"]),
        ),
        "nothing-stored": {STORE: ""},
        "just-in-time": (JUST_IN_TIME, When(lambda got, want, *_: got["tiles held"] < want["tiles held"])),
        "loaded-twice": (
            {**JUST_IN_TIME, NEXT: f"{NEXT}\n        {OWN}"},
            When(lambda got, want, *_: got["loads of page ids"] > want["loads of page ids"]),
        ),
        "all-up-front": When(lambda got, want, *_: got["tiles held"] > want["tiles held"]),
        "pages-of-the-next-tile": {PAGE: f"next_{PAGE}"},
        "pages-of-the-tile-before": {FIRST: "    pages = lanes * 0\n"},
        "logical-as-physical": {PAGE: "(tokens // BLOCK_SIZE).to(tl.int64) *"},
        "last-tile-lost": {"range(0, length, TILE)": "range(0, length // TILE * TILE, TILE)"},
        "first-tile-lost": {"range(0,": "range(TILE,", f"{ENTRY}, mask=lanes < length": SECOND},
        "offsets-of-the-next-tile": {PLACE: "coming % BLOCK_SIZE"},
    },
)


def scored(kernel: Any) -> Callable[..., dict[str, Any]]:
    def play(length: int, block_size: int, tile: int) -> dict[str, Any]:
        blocks, dim, heads = -(-length // block_size), 8, 16
        keys = matrix(blocks + 4, block_size, dim, strides=(block_size * dim + 16, dim, 1))
        q, out = matrix(heads, dim), matrix(heads, length)
        shuffled = torch.randperm(blocks + 4, generator=torch.Generator().manual_seed(length))
        table = shuffled.to(torch.int32).repeat(block_size * tile)[:blocks]  # more entries lie behind it
        loads = {"entries": memory_of(table), "own entries": table, "keys": memory_of(keys)}
        arguments = (q, keys, table, out, length, *keys.stride()[:2])
        sizes = dict(BLOCK_SIZE=block_size, HEAD_DIM=dim, TILE=tile)
        did, order = launch(kernel, (1,), out, loads, *arguments, **sizes)
        asked = [order[:i].count("entries") for i, name in enumerate(order) if name == "keys"]
        held = max((ids - used for used, ids in enumerate(asked)), default=0)
        return did | {"loads of page ids": order.count("entries"), "tiles held": held}

    return play


@EXERCISE.grader
def grade_pages(tile_scores: Any) -> None:
    cases = [(15, 4, 8), (40, 16, 4), (3, 16, 8), (37, 6, 16), (50, 24, 16), (33, 8, 8)]
    EXERCISE.judge("tile_scores", tile_scores, cases, play=scored, keeps_input=False)
