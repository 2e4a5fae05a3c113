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


RIGHT = [(in_a_loop, walk_with_a_last_round)]
WRONG = {
    "not-three-arrays": {", tokens < context_len": ""},
    "all-up-front": {"walk": everything_first},
    "first-tile-lost": {"walk": starts_with_the_second},
}
