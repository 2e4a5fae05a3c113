"""Grader of exercise 5.3: which pages a tile needs, and asking for them one round ahead."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from exercises.grading import NotYet, show
from exercises.judging.judge import When
from exercises.judging.solutions import Solution
from exercises.phase5.tile_machine import LATE, TileMachine

Places = tuple[np.ndarray, np.ndarray, np.ndarray]

SIZES = [  # start, tile, context_len, block_size
    *((0, 6, 15, 4), (12, 6, 15, 4), (6, 6, 15, 4), (0, 4, 3, 16)),
    *((16, 16, 40, 16), (48, 16, 60, 64), (8, 8, 13, 2), (5, 5, 9, 3)),
]
WALKS = [(15, 4, 6), (15, 4, 4), (64, 16, 16), (50, 4, 16), (37, 16, 4), (3, 16, 8), (33, 8, 32)]

PAGE, VALID = "tokens // block_size", "tokens < context_len"
FIRST_LOAD, NEXT_LOAD = (
    "    pages = load(logical, valid)\n",
    "next_pages = load(next_logical, next_valid)",
)
FETCH, MOVED_ON = "fetch(pages, offsets, valid)", "pages, offsets, valid = next_pages"
# Each round loads its own pages, and fetches at once.
JUST_IN_TIME = {
    FIRST_LOAD: "",
    NEXT_LOAD: "pages = load(logical, valid)",
    MOVED_ON: "logical, offsets, valid = next_logical",
}
EXERCISE = Solution(
    "p5e3_page_ids",
    tile_places={
        "tile-as-page": {PAGE: "np.full(tile, start // tile)"},
        "one-page-for-the-tile": {PAGE: "np.full(tile, start // block_size)"},
        "start-forgotten": {PAGE: "np.arange(tile) // block_size"},
        "offset-in-the-tile": {"tokens % block_size": "np.arange(tile)"},
        "offset-not-modulo": {"tokens % block_size": "tokens"},
        "one-lane-too-many": {VALID: "tokens <= context_len"},
        "whole-last-page": {VALID: "tokens // block_size <= (context_len - 1) // block_size"},
        "valid-counts-lanes": {VALID: "np.arange(tile) < context_len"},
        "all-valid": {VALID: "np.ones(tile, dtype=bool)"},
    },
    walk={
        "just-in-time": (JUST_IN_TIME, When(lambda got, want, *_: got["waits"] != want["waits"])),
        "loaded-twice": (  # loads the next tile's pages, forgets them, and loads them again
            {
                **JUST_IN_TIME,
                NEXT_LOAD: "pages = load(logical, valid)\n        load(next_logical, next_valid)",
            },
            When(lambda got, want, *_: got["loads"] != want["loads"]),
        ),
        "pages-of-the-next-tile": {FETCH: "fetch(next_pages, offsets, valid)"},
        "pages-of-the-tile-before": {FIRST_LOAD: "    pages = np.zeros(tile, dtype=int)\n"},
        "reads-beyond-the-table": {NEXT_LOAD: "next_pages = load(next_logical, valid)"},
        "nothing-fetched": {FETCH: "pass"},
        "last-tile-lost": {"range(0, context_len, tile)": "range(0, context_len // tile * tile, tile)"},
        "offsets-of-the-next-tile": {FETCH: "fetch(pages, next_offsets, valid)"},
        "logical-as-physical": {
            FETCH: "fetch(logical, offsets, valid)",
            ", valid = next_pages": ", valid, logical = next_pages",
            "next_valid\n": "next_valid, next_logical\n",
        },
        "first-tile-lost": When(lambda got, want, *_: got["fetched"] == want["fetched"][1:]),
        "all-up-front": When(lambda got, want, *_: got["ahead"] != want["ahead"]),
    },
)


def lanes(tile_places: Callable[..., Places]) -> Callable[..., dict[str, list[int]]]:
    """The three arrays. A lane without a token may hold anything: it is never read."""

    def play(start: int, tile: int, context_len: int, block_size: int) -> dict[str, list[int]]:
        got = tile_places(start, tile, context_len, block_size)
        if got is None or not isinstance(got, (tuple, list)) or len(got) != 3:
            return got
        logical, offsets, valid = map(np.asarray, got)
        here = start + np.arange(tile) < context_len
        if not logical.shape == offsets.shape == valid.shape == here.shape:
            return {"shapes": [logical.shape, offsets.shape, valid.shape]}
        told = {"logical": logical[here], "offsets": offsets[here], "valid": valid}
        return {name: array.astype(int).tolist() for name, array in told.items()}

    return play


def _three_arrays(got: Any) -> dict[str, list[int]]:
    if not isinstance(got, dict):
        raise EXERCISE.says("walk").no("not-three-arrays", "tile_places(...)", show(got))
    if "shapes" in got:
        says = "`logical`, `offsets` and `valid` have one value each for each lane of the tile."
        raise NotYet("wrong-shape", says, "tile_places(...)", f"shapes {got['shapes']}", "(tile,)")
    return got


def walked(walk: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Which slots were fetched, and how the page ids were asked for."""

    def play(context_len: int, block_size: int, tile: int) -> dict[str, Any]:
        rng = random.Random(context_len * 1000 + block_size * 50 + tile)
        machine = TileMachine(rng.sample(range(1, 900), -(-context_len // block_size)), block_size)
        walk(machine.load, machine.fetch, context_len, block_size, tile)
        loaded = sum(len(numbers) for what, numbers in machine.log if what == "load")
        held = most = 0
        for what, numbers in machine.log:
            held += bool(numbers) if what == "load" else -1
            most = max(most, held)
        return {
            "read beyond the table": sorted(set(machine.outside)),
            "fetched": [slots for what, slots in machine.log if what == "fetch"],
            "loads": "a page id again" if loaded > context_len else "each page id once",
            "ahead": "many tiles" if most > 2 else "one tile",
            "waits": "for more than the first tile" if machine.waited > LATE else "for the first tile",
        }

    return play


@EXERCISE.grader
def grade_pages(tile_places: Callable[..., Places], walk: Callable[..., None]) -> str:
    EXERCISE.judge("tile_places", tile_places, SIZES, play=lanes, clean=_three_arrays)
    rng = random.Random(5)
    walks = list(WALKS)
    for _ in range(60):
        walks.append(
            (rng.randint(1, 70), rng.choice([1, 2, 3, 4, 8, 16]), rng.choice([1, 2, 4, 6, 8, 16, 32]))
        )
    EXERCISE.judge("walk", walk, walks, play=walked)
    return "Eight tiles, then 67 walks with tiles larger and smaller than a page: every token once, no wait but the first."
