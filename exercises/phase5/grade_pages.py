"""Grader of exercise 5.3: which pages a tile needs, and asking for them one round ahead."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from exercises.grading import Diagnoses, Exercise, NotYet, guard, show
from exercises.judging.slips import slips
from exercises.phase5.tile_machine import LATE, TileMachine

WALK_SAYS = Diagnoses.of("p5e3_page_ids walk")

Places = tuple[np.ndarray, np.ndarray, np.ndarray]

PLACES_SAYS = Diagnoses.of("p5e3_page_ids tile_places")
SIZES = (
    (0, 6, 15, 4),
    (12, 6, 15, 4),
    (6, 6, 15, 4),
    (0, 4, 3, 16),
    (16, 16, 40, 16),
    (48, 16, 60, 64),
    (8, 8, 13, 2),
    (5, 5, 9, 3),
)


def right_places(start: int, tile: int, context_len: int, block_size: int) -> Places:
    tokens = start + np.arange(tile)
    return tokens // block_size, tokens % block_size, tokens < context_len


PAGE, VALID = "tokens // block_size", "tokens < context_len"
WRONG_PLACES = {
    "tile-as-page": {PAGE: "np.full(tile, start // tile)"},
    "one-page-for-the-tile": {PAGE: "np.full(tile, start // block_size)"},
    "start-forgotten": {PAGE: "np.arange(tile) // block_size"},
    "offset-in-the-tile": {"tokens % block_size": "np.arange(tile)"},
    "offset-not-modulo": {"tokens % block_size": "tokens"},
    "one-lane-too-many": {VALID: "tokens <= context_len"},
    "whole-last-page": {VALID: "tokens // block_size < -(-context_len // block_size)"},
    "valid-counts-lanes": {VALID: "np.arange(tile) < context_len"},
    "all-valid": {VALID: "np.full(tile, True)"},
}
WAYS = slips(right_places, WRONG_PLACES)


def grade_pages(tile_places: Callable[..., Places], walk: Callable[..., None]) -> str:
    _places(tile_places)
    for context_len, block_size, tile in (
        (15, 4, 6),
        (15, 4, 4),
        (64, 16, 16),
        (50, 4, 16),
        (37, 16, 4),
        (3, 16, 8),
        (33, 8, 32),
    ):
        _walk(walk, context_len, block_size, tile)
    rng = random.Random(5)
    for _ in range(60):
        _walk(walk, rng.randint(1, 70), rng.choice([1, 2, 3, 4, 8, 16]), rng.choice([1, 2, 4, 6, 8, 16, 32]))
    return "Eight tiles, then 67 walks with tiles larger and smaller than a page: every token once, no wait but the first."


def _places(tile_places: Callable[..., Places]) -> None:
    failed: list[tuple[tuple[int, ...], list[np.ndarray]]] = []
    for sizes in SIZES:
        tried = "start {}, tile {}, context_len {}, block_size {}".format(*sizes)
        got = guard(tile_places, *sizes, tried=tried)
        if got is None:
            raise NotYet("returns-nothing", "None came back. Is a `return` missing?", tried)
        if not isinstance(got, (tuple, list)) or len(got) != 3:
            raise WALK_SAYS.no("not-three-arrays", tried, show(got))
        arrays = [np.asarray(x) for x in got]
        for name, array in zip(("logical", "offsets", "valid"), arrays):
            if array.shape != (sizes[1],):
                says = f"`{name}` has one value for each lane of the tile."
                got, expected = f"{name} has shape {array.shape}", f"shape {(sizes[1],)}"
                raise NotYet("wrong-shape", says, tried, got, expected)
        failed.append((sizes, arrays))
    for number, name in enumerate(("logical", "offsets", "valid")):
        _name_the_array(number, name, failed)


def _name_the_array(number: int, name: str, tries: list[tuple[tuple[int, ...], list[np.ndarray]]]) -> None:
    """Raise if this one of the three arrays is wrong in any tile: a mistake must explain all of them."""
    off = [
        (sizes, arrays[number]) for sizes, arrays in tries if not _gives("", number, sizes, arrays[number])
    ]
    if not off:
        return
    sizes, got = off[0]
    tried = "start {}, tile {}, context_len {}, block_size {}".format(*sizes)
    shown, wanted = (
        f"{name}: {got.astype(int).tolist()}",
        f"{name}: {right_places(*sizes)[number].astype(int).tolist()}",
    )
    for mistake in PLACES_SAYS:
        if all(_gives(mistake, number, sizes, arrays[number]) for sizes, arrays in tries):
            raise PLACES_SAYS.no(mistake, tried, shown, wanted)
    raise NotYet("wrong-result", f"`{name}` is not right yet.", tried, shown, wanted)


def _gives(mistake: str, number: int, sizes: tuple[int, ...], got: np.ndarray) -> bool:
    """Whether this is what the mistake gives, or ("") what is right."""
    right = right_places(*sizes)
    wanted = WAYS[mistake](*sizes)[number] if mistake else right[number]
    counts = right[2] | (number == 2)  # a lane without a token may hold anything: it is never read
    return np.array_equal(got[counts], wanted[counts])


def _walk(walk: Callable[..., Any], context_len: int, block_size: int, tile: int) -> None:
    rng = random.Random(context_len * 1000 + block_size * 50 + tile)
    table = rng.sample(range(1, 900), -(-context_len // block_size))
    machine = TileMachine(table, block_size)
    tried = f"{context_len} tokens, pages of {block_size}, tiles of {tile}, block table {show(table, 80)}"
    guard(walk, machine.load, machine.fetch, context_len, block_size, tile, tried=tried)
    tiles = -(-context_len // tile)
    slots = [table[t // block_size] * block_size + t % block_size for t in range(context_len)]
    expected = [slots[first : first + tile] for first in range(0, context_len, tile)]
    fetched = [slots for what, slots in machine.log if what == "fetch"]
    loads = [read for what, read in machine.log if what == "load" and read]

    def no(diagnosis: str, got: Any, wanted: Any) -> NotYet:
        return WALK_SAYS.no(diagnosis, tried, got, wanted)

    if machine.outside:
        got = f"entries read: {show(sorted(set(machine.outside)))}"
        raise no("reads-beyond-the-table", got, f"the table has {len(table)}: 0 to {len(table) - 1}")
    if not fetched:
        raise no("nothing-fetched", f"{len(machine.log)} calls of load", f"{tiles} calls of fetch")
    if fetched != expected:
        raise _name_the_order(no, fetched, expected, table, block_size, tile, context_len)
    if sum(map(len, loads)) > context_len:
        raise no("loaded-twice", f"{len(loads)} loads that read something", f"{tiles}, one for each tile")
    held = most = 0
    for what, numbers in machine.log:
        held += bool(numbers) if what == "load" else -1
        most = max(most, held)
    if most > 2:
        raise no("all-up-front", f"pages of {most} tiles at a time", "of 2 at most")
    if machine.waited > LATE:
        got = f"waited {machine.waited} of {machine.now} ticks of its clock"
        raise no("just-in-time", got, f"waited {LATE}, for the first tile's")


def _name_the_order(
    no: Callable[..., NotYet],
    fetched: list[list[int]],
    expected: list[list[int]],
    table: list[int],
    block_size: int,
    tile: int,
    context_len: int,
) -> NotYet:
    if fetched == expected[:-1]:
        return no("last-tile-lost", fetched[-1:], expected[-1])
    if fetched == expected[1:]:
        return no("first-tile-lost", fetched[:1], expected[0])
    n = next(
        (i for i, (a, b) in enumerate(zip(fetched, expected)) if a != b), min(len(fetched), len(expected))
    )
    got = fetched[n] if n < len(fetched) else []
    right = expected[n] if n < len(expected) else []
    shown, as_it_should = f"tile {n}: {show(got, 200)}", f"tile {n}: {show(right, 200)}"
    first = n * tile
    tokens = range(first, min(first + tile, context_len))
    ahead = [
        (table[(t + tile) // block_size] if t + tile < context_len else 0) * block_size + t % block_size
        for t in tokens
    ]
    if got == ahead:
        return no("pages-of-the-next-tile", shown, as_it_should)
    before = [
        (table[(t - tile) // block_size] if t >= tile else 0) * block_size + t % block_size for t in tokens
    ]
    if got == before or (n == 0 and got == [t % block_size for t in tokens]):
        return no("pages-of-the-tile-before", shown, as_it_should)
    if got == list(tokens):
        return no("logical-as-physical", shown, as_it_should)
    next_offsets = [table[t // block_size] * block_size + (t + tile) % block_size for t in tokens]
    if got and got == next_offsets[: len(got)]:
        return no("offsets-of-the-next-tile", shown, as_it_should)
    return no("wrong-result", shown, as_it_should)


EXERCISES = [
    Exercise("p5e3_page_ids", ("tile_places", "walk"), grade_pages),
]
