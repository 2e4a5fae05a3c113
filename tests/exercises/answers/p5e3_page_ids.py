"""Answers to exercise 5.3 that learners give."""

import numpy as np

from tests.exercises.changed import changed


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


def walk(load, fetch, context_len, block_size, tile):
    """Right."""
    here = places(0, tile, context_len, block_size)
    pages = load(here[0], here[2])
    start = 0
    while start < context_len:
        start += tile
        after = places(start, tile, context_len, block_size)
        pages_after = load(after[0], after[2])
        fetch(pages, here[1], here[2])
        here, pages = after, pages_after


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


def two_hands(load, fetch, context_len, block_size, tile):
    logical, offsets, valid = places(0, tile, context_len, block_size)
    pages = load(logical, valid)
    for start in range(0, context_len, tile):
        after, offsets_after, valid_after = places(start + tile, tile, context_len, block_size)
        pages_after = load(after, valid_after)
        fetch(pages, offsets, valid)
        pages, offsets, valid = pages_after, offsets_after, valid_after


def just_in_time(load, fetch, context_len, block_size, tile):
    for start in range(0, context_len, tile):
        logical, offsets, valid = places(start, tile, context_len, block_size)
        fetch(load(logical, valid), offsets, valid)


def ahead_and_again(load, fetch, context_len, block_size, tile):
    """Loads the next tile's pages, forgets them, and loads them again."""
    for start in range(0, context_len, tile):
        logical, offsets, valid = places(start, tile, context_len, block_size)
        after, _, valid_after = places(start + tile, tile, context_len, block_size)
        pages = load(logical, valid)
        load(after, valid_after)
        fetch(pages, offsets, valid)


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


def only_loads(load, fetch, context_len, block_size, tile):
    for start in range(0, context_len, tile):
        logical, _, valid = places(start, tile, context_len, block_size)
        load(logical, valid)


RIGHT = [(places, walk), (in_a_loop, walk_with_a_last_round)]
WRONG = {
    "tile-as-page": (changed(places, {"tokens // block_size": "np.full(tile, start // tile)"}), walk),
    "one-page-for-the-tile": (
        changed(places, {"tokens // block_size": "np.full(tile, start // block_size)"}),
        walk,
    ),
    "start-forgotten": (changed(places, {"tokens // block_size": "np.arange(tile) // block_size"}), walk),
    "offset-in-the-tile": (changed(places, {"tokens % block_size": "np.arange(tile)"}), walk),
    "offset-not-modulo": (changed(places, {"tokens % block_size": "tokens"}), walk),
    "one-lane-too-many": (changed(places, {"tokens < context_len": "tokens <= context_len"}), walk),
    "whole-last-page": (
        changed(places, {"tokens < context_len": "tokens // block_size <= (context_len - 1) // block_size"}),
        walk,
    ),
    "valid-counts-lanes": (changed(places, {"tokens < context_len": "np.arange(tile) < context_len"}), walk),
    "all-valid": (changed(places, {"tokens < context_len": "np.ones(tile, dtype=bool)"}), walk),
    "not-three-arrays": (changed(places, {", tokens < context_len": ""}), walk),
    "just-in-time": (places, just_in_time),
    "loaded-twice": (places, ahead_and_again),
    "pages-of-the-next-tile": (places, changed(two_hands, {"fetch(pages, ": "fetch(pages_after, "})),
    "pages-of-the-tile-before": (
        places,
        changed(two_hands, {"pages = load(logical, valid)": "pages = np.zeros(tile, dtype=int)"}),
    ),
    "reads-beyond-the-table": (
        places,
        changed(two_hands, {"load(after, valid_after)": "load(after, valid)"}),
    ),
    "all-up-front": (places, everything_first),
    "nothing-fetched": (places, only_loads),
    "last-tile-lost": (
        places,
        changed(two_hands, {"range(0, context_len, tile)": "range(0, context_len // tile * tile, tile)"}),
    ),
    "first-tile-lost": (places, starts_with_the_second),
    "offsets-of-the-next-tile": (
        places,
        changed(two_hands, {"fetch(pages, offsets, valid)": "fetch(pages, offsets_after, valid)"}),
    ),
}
