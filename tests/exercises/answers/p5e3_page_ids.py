"""Answers to exercise 5.3 that learners give."""

import numpy as np


def places(start, tile, context_len, block_size):
    tokens = np.arange(start, start + tile)
    return tokens // block_size, tokens % block_size, tokens < context_len


def in_a_loop(start, tile, context_len, block_size):
    """Right: lane by lane, as lists."""
    logical, offsets, valid = [], [], []
    for lane in range(tile):
        page, place = divmod(start + lane, block_size)
        logical.append(page)
        offsets.append(place)
        valid.append(start + lane < context_len)
    return logical, offsets, valid


def walk_with_a_last_round(load, fetch, context_len, block_size, tile):
    """Right: keeps what waits to be fetched, and fetches the last tile after the loop. No load without a token."""
    waiting = None
    for start in range(0, context_len, tile):
        logical, offsets, valid = places(start, tile, context_len, block_size)
        pages = load(logical, valid)
        if waiting:
            fetch(*waiting)
        waiting = pages, offsets, valid
    fetch(*waiting)


def everything_first(load, fetch, context_len, block_size, tile):
    tiles = [places(start, tile, context_len, block_size) for start in range(0, context_len, tile)]
    pages = [load(logical, valid) for logical, _, valid in tiles]
    for here, (_, offsets, valid) in zip(pages, tiles):
        fetch(here, offsets, valid)


def starts_with_the_second(load, fetch, context_len, block_size, tile):
    logical, offsets, valid = places(0, tile, context_len, block_size)
    pages = load(logical, valid)
    for start in range(tile, context_len, tile):
        logical, offsets, valid = places(start, tile, context_len, block_size)
        pages = load(logical, valid)
        fetch(pages, offsets, valid)


PAGE, VALID = "tokens // block_size", "tokens < context_len"
FIRST_LOAD = "    pages = load(logical, valid)\n"
NEXT_LOAD = "next_pages = load(next_logical, next_valid)"
FETCH = "fetch(pages, offsets, valid)"
MOVED_ON = "pages, offsets, valid = next_pages"
# Each round loads its own pages, and fetches at once.
JUST_IN_TIME = {
    FIRST_LOAD: "",
    NEXT_LOAD: "pages = load(logical, valid)",
    MOVED_ON: "logical, offsets, valid = next_logical",
}
RIGHT = [(in_a_loop, walk_with_a_last_round)]
WRONG = {
    "tile-as-page": {PAGE: "np.full(tile, start // tile)"},
    "one-page-for-the-tile": {PAGE: "np.full(tile, start // block_size)"},
    "start-forgotten": {PAGE: "np.arange(tile) // block_size"},
    "offset-in-the-tile": {"tokens % block_size": "np.arange(tile)"},
    "offset-not-modulo": {"tokens % block_size": "tokens"},
    "one-lane-too-many": {VALID: "tokens <= context_len"},
    "whole-last-page": {VALID: "tokens // block_size <= (context_len - 1) // block_size"},
    "valid-counts-lanes": {VALID: "np.arange(tile) < context_len"},
    "all-valid": {VALID: "np.ones(tile, dtype=bool)"},
    "not-three-arrays": {f", {VALID}": ""},
    "just-in-time": JUST_IN_TIME,
    # Loads the next tile's pages, forgets them, and loads them again.
    "loaded-twice": {
        **JUST_IN_TIME,
        NEXT_LOAD: "pages = load(logical, valid)\n        load(next_logical, next_valid)",
    },
    "pages-of-the-next-tile": {FETCH: "fetch(next_pages, offsets, valid)"},
    "pages-of-the-tile-before": {FIRST_LOAD: "    pages = np.zeros(tile, dtype=int)\n"},
    "reads-beyond-the-table": {NEXT_LOAD: "next_pages = load(next_logical, valid)"},
    "all-up-front": {"walk": everything_first},
    "nothing-fetched": {FETCH: "pass"},
    "last-tile-lost": {"range(0, context_len, tile)": "range(0, context_len // tile * tile, tile)"},
    "first-tile-lost": {"walk": starts_with_the_second},
    "offsets-of-the-next-tile": {FETCH: "fetch(pages, next_offsets, valid)"},
}
