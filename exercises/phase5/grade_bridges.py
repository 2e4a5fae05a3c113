"""Graders of exercises 5.0a to 5.0c and 5.3: small kernels on the way to paged attention, interpreted."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from exercises.judging.judge import Exercise, When
from exercises.phase5.launching import launch_interpreted
from phase5_real_gpu.ladder import count_loads

UNTOUCHED = 12345.0
MARGIN = 3000  # numbers before and behind a matrix: a wrong address lands there


def matrix(*shape: int, strides: Sequence[int] | None = None) -> Tensor:
    """Random numbers in the middle of larger memory, which is random as well."""
    strides = strides or torch.empty(shape).stride()
    size = sum((n - 1) * stride for n, stride in zip(shape, strides)) + 1
    memory = torch.randn(size + 2 * MARGIN, generator=torch.Generator().manual_seed(size))
    return memory.as_strided(shape, strides, MARGIN)


def memory_of(x: Tensor) -> Tensor:
    """All numbers of the memory in which a tensor lies."""
    return x.as_strided((x.untyped_storage().size() // x.element_size(),), (1,), 0)


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    writes: Tensor,
    loads: Mapping[str, Tensor],
    *arguments: Any,
    **constants: int,
) -> tuple[dict[str, Any], list[str]]:
    """Run a kernel. loads: tensors whose loads are counted, by their names.

    Returns:
        What it leaves in `writes`, how many numbers it writes elsewhere, how many it reads of each tensor of `loads`; the names of
        its loads, in order.
    """
    memory = memory_of(writes).fill_(UNTOUCHED)
    with count_loads(**loads) as counted:
        launch_interpreted(kernel, grid, *arguments, tried="this case", **constants)
    did = {"result": writes.clone()}
    writes.fill_(UNTOUCHED)
    did["written elsewhere"] = int((memory != UNTOUCHED).sum())
    return did | {f"{name} read": n // 4 for name, n in counted.loaded.items()}, counted.loads


# ------------------------------------------------------------------ 5.0a

DOWN, ACROSS = "tl.program_id(0) * TILE", "tl.program_id(1) * TILE"
COPY = Exercise(
    "p5e0a_tiled_copy",
    tiled_copy={
        "store-unmasked": {"tile, mask=exists": "tile"},
        "load-unmasked": {"c[None, :], mask=exists)": "c[None, :])"},
        "no-masks": {"c[None, :], mask=exists)": "c[None, :])", "tile, mask=exists": "tile"},
        "rows-unmasked": {"(r < rows)[:, None] & ": ""},
        "columns-unmasked": {" & (c < columns)[None, :]": ""},
        "one-too-many": ({"r < rows": "r <= rows"}, {"c < columns": "c <= columns"}),
        "first-tile-only": ({f"{DOWN} + ": ""}, {f"{ACROSS} + ": ""}),
        "tile-number-as-place": {DOWN: "tl.program_id(0)", ACROSS: "tl.program_id(1)"},
        "axes-swapped": {f"r = {DOWN}": f"r = {ACROSS}", f"c = {ACROSS}": f"c = {DOWN}"},
        "strides-mixed": ({"* out_stride": "* x_stride"}, {"* x_stride": "* out_stride"}),
        "stride-is-not-columns": {"* out_stride": "* columns", "* x_stride": "* columns"},
    },
)


def copied(kernel: Any, rows: int, columns: int, x_stride: int, out_stride: int, tile: int) -> dict[str, Any]:
    x, out = (matrix(rows, columns, strides=(stride, 1)) for stride in (x_stride, out_stride))
    grid = (-(-rows // tile), -(-columns // tile))
    sizes = (rows, columns, x_stride, out_stride)
    return launch(kernel, grid, out, {"numbers": memory_of(x)}, x, out, *sizes, TILE=tile)[0]


@COPY.grader
def grade_copy(tiled_copy: Any) -> None:
    sizes = [(5, 7, 9, 12, 4), (8, 4, 4, 6, 4), (3, 17, 20, 17, 8), (9, 2, 5, 3, 2)]
    COPY.judge("tiled_copy", tiled_copy, sizes, play=copied)


# ------------------------------------------------------------------ 5.0b

TOTAL, NEW = "total * tl.exp(largest - new) + ", "tl.maximum(largest, tl.max(tile, axis=0))"
BEGIN = 'largest, total = float("-inf"), 0.0\n'
ALSO_BEFORE = f"""{BEGIN}    for first in range(0, columns, TILE):
        numbers = tl.load(x + row + first + places, mask=first + places < columns, other=float("-inf"))
        largest = tl.maximum(largest, tl.max(numbers, axis=0))
"""
ONE_BY_ONE = {  # the result of each tile is written at once
    "total = total": "tl.store(out + row + first + places, tl.exp(tile - tl.max(tile, axis=0)) / "
    "tl.sum(tl.exp(tile - tl.max(tile, axis=0)), axis=0), mask=exists)\n        total = total",
    "        tl.store(out + row + first + places, tl.exp(tile - largest) / total, mask=exists)\n": "",
}
SOFTMAX = Exercise(
    "p5e0b_long_softmax",
    long_softmax={
        "total-not-rescaled": {"total * tl.exp(largest - new)": "total"},
        "total-of-the-last-tile": {TOTAL: ""},
        "tail-counts": ({'other=float("-inf")': "other=0.0"}, {', other=float("-inf")': ""}),
        "not-divided": {" / total": ""},
        "softmax-of-each-tile": ONE_BY_ONE,
        "last-tile-lost": {"range(0, columns, TILE)": "range(0, columns // TILE * TILE, TILE)"},
        "no-maximum": ({NEW: "0.0", BEGIN: "largest, total = 0.0, 0.0\n"}, {"tl.max(tile": "tl.min(tile"}),
        "maximum-goes-down": {NEW: "tl.max(tile, axis=0)"},
        "maximum-starts-at-zero": {BEGIN: "largest, total = 0.0, 0.0\n"},
        "largest-never-moves": {"        largest = new\n": ""},
        "store-unmasked": {"/ total, mask=exists": "/ total"},
        "load-unmasked": {"places, mask=exists)\n        tl.store": "places)\n        tl.store"},
        "read-three-times": {BEGIN: ALSO_BEFORE},
    },
)


def softmaxed(kernel: Any, x: Tensor, tile: int) -> dict[str, Any]:
    rows, columns = x.shape
    place = matrix(rows, columns)
    place.copy_(x)
    out = matrix(rows, columns)
    did, _ = launch(kernel, (rows,), out, {"numbers": memory_of(place)}, place, out, columns, TILE=tile)
    return did | {"numbers read": max(did["numbers read"], 2 * x.numel())}  # fewer are as good


@SOFTMAX.grader
def grade_softmax(long_softmax: Any) -> None:
    sizes = ((2, 11, 4), (1, 30, 8), (3, 5, 2))
    cases = [(3.0 * matrix(rows, columns), tile) for rows, columns, tile in sizes]
    for row in ([1e3, 999.0, -1e3, -999.0], [1e3, -1e3, 1e3, -1e3], [-1e3, -1001.0, -999.0]):
        cases.append((torch.tensor([row]), 2))
    SOFTMAX.judge("long_softmax", long_softmax, cases, play=softmaxed)


# ------------------------------------------------------------------ 5.0c

PHYSICAL, PLACE = "physical * block_stride", "places[:, None] * token_stride"
SCORES = Exercise(
    "p5e0c_block_scores",
    block_scores={
        "logical-as-physical": {PHYSICAL: "logical * block_stride"},
        "block-number-as-place": {PHYSICAL: "physical * token_stride"},
        "strides-assumed": {PHYSICAL: "physical * BLOCK_SIZE * HEAD_DIM"},
        "strides-swapped": {PHYSICAL: "physical * token_stride", PLACE: "places[:, None] * block_stride"},
        "table-entry-by-token": {"block_table + logical": "block_table + logical * BLOCK_SIZE"},
        "stored-by-place": {"out + tokens": "out + places"},
        "stored-by-block": {"out + tokens": "out + physical * BLOCK_SIZE + places"},
        "sum-over-tokens": {"axis=1": "axis=0"},
        "store-unmasked": {"scores, mask=tokens < length": "scores"},
        "empty-places-read": {", mask=(tokens < length)[:, None], other=0.0": ""},
    },
)


def scored(kernel: Any, length: int, block_size: int, dim: int, num_blocks: int, gap: int) -> dict[str, Any]:
    strides = (block_size * dim + gap, dim, 1)
    keys, q, out = matrix(num_blocks, block_size, dim, strides=strides), matrix(dim), matrix(length)
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(length))
    table = order.to(torch.int32).repeat(block_size)  # longer than the request needs
    blocks = (-(-length // block_size),)
    arguments = (q, keys, table, out, length, *strides[:2])
    read = {"numbers": memory_of(keys)}
    return launch(kernel, blocks, out, read, *arguments, BLOCK_SIZE=block_size, HEAD_DIM=dim)[0]


@SCORES.grader
def grade_scores(block_scores: Any) -> None:
    cases = [(10, 4, 4, 6, 3), (3, 4, 8, 3, 0), (16, 8, 8, 5, 5), (21, 2, 16, 12, 0)]
    SCORES.judge("block_scores", block_scores, cases, play=scored)


# ---------------------------------------------------------------------- 5.3 block ids, one iteration ahead

FIRST = "    blocks = tl.load(block_table + places // BLOCK_SIZE, mask=places < length, other=0)\n"
NEXT = "next_blocks = tl.load(block_table + coming // BLOCK_SIZE, mask=coming < length, other=0)"
OWN = "blocks = tl.load(block_table + tokens // BLOCK_SIZE, mask=tokens < length, other=0)"
ENTRY, COMING = "places // BLOCK_SIZE", "coming // BLOCK_SIZE"
OFFSET, EXISTS, BLOCKS = "tokens % BLOCK_SIZE", "tokens < length", "blocks.to(tl.int64) *"
STORE = "        tl.store(out + heads * length + tokens[None, :], scores, mask=(tokens < length)[None, :])\n"
SECOND = "(places + TILE) // BLOCK_SIZE, mask=places + TILE < length"
JUST_IN_TIME = {FIRST: "", NEXT: OWN, "        blocks = next_blocks\n": ""}
BLOCK_IDS = Exercise(
    "p5e3_page_ids",
    20.0,
    tile_scores={
        "tile-as-block": {ENTRY: "places // TILE", COMING: "coming // TILE"},
        "one-block-for-the-tile": {
            ENTRY: "(places * 0)",
            COMING: "((first + TILE) // BLOCK_SIZE + places * 0)",
        },
        "start-forgotten": {COMING: ENTRY},
        "offset-in-the-tile": {OFFSET: "places"},
        "offset-not-modulo": {OFFSET: "tokens"},
        "one-place-too-many": {EXISTS: "tokens <= length"},
        "whole-last-block": {EXISTS: "tokens // BLOCK_SIZE <= (length - 1) // BLOCK_SIZE"},
        "valid-counts-places": {EXISTS: "places < length"},
        "all-valid": {EXISTS: "tokens >= 0"},
        "reads-beyond-the-table": (
            {"coming < length": "tokens < length"},
            When(lambda got, *_: got["entries read"] > got["own entries read"]),
        ),
        "nothing-stored": {STORE: ""},
        "just-in-time": (JUST_IN_TIME, When(lambda got, want, *_: got["tiles held"] < want["tiles held"])),
        "loaded-twice": (
            {**JUST_IN_TIME, NEXT: f"{NEXT}\n        {OWN}"},
            When(lambda got, want, *_: got["loads of block ids"] > want["loads of block ids"]),
        ),
        "all-up-front": When(lambda got, want, *_: got["tiles held"] > want["tiles held"]),
        "blocks-of-the-next-tile": {BLOCKS: f"next_{BLOCKS}"},
        "blocks-of-the-tile-before": {FIRST: "    blocks = places * 0\n"},
        "logical-as-physical": {BLOCKS: "(tokens // BLOCK_SIZE).to(tl.int64) *"},
        "last-tile-lost": {"range(0, length, TILE)": "range(0, length // TILE * TILE, TILE)"},
        "first-tile-lost": {"range(0,": "range(TILE,", f"{ENTRY}, mask=places < length": SECOND},
        "offsets-of-the-next-tile": {OFFSET: "coming % BLOCK_SIZE"},
    },
)


def tiles_scored(kernel: Any, length: int, block_size: int, tile: int) -> dict[str, Any]:
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
    return did | {"loads of block ids": order.count("entries"), "tiles held": held}


@BLOCK_IDS.grader
def grade_block_ids(tile_scores: Any) -> None:
    cases = [(15, 4, 8), (40, 16, 4), (3, 16, 8), (37, 6, 16), (50, 24, 16), (33, 8, 8)]
    BLOCK_IDS.judge("tile_scores", tile_scores, cases, play=tiles_scored, keeps_input=False)
