"""A decode step through all blocks as a list of phases, which the threads work through together.

The list for one layer; behind each phase, what its parts are:

    NORM       add what the layer before found to the stream, norm        a row
    QKV        product with the q, k, v matrix                            a tile, for up to 64 rows
    STORE      norm, rotate; the new key and value go to their slot       a row
    ATTEND     attention over some blocks of a request                    a request's split
    MERGE      what its splits found becomes one                          a row
    OUT        product with the output matrix                             a tile, for up to 64 rows
    NORM_MLP   add to the stream, norm                                    a row
    UP         product with the first matrix of the MLP                   a tile, for up to 64 rows
    ACTIVATE   GELU or SwiGLU                                             a row
    DOWN       product with the second one                                a tile, for up to 64 rows

How parts are taken, and why computing one and publishing it are two things: Phase 2, `work_sharing.py`. All numbers in
between are float32; before a product with weights in 8 or 4 bits, rows are turned into 8 bits when they are published; before
one for a processor's matrix unit, into bfloat16.

The threads are Python's. Of those only one runs at a time, the one that holds the interpreter's lock (the GIL). Compiled code
can do without the lock: `nogil`. So each thread makes one call, and all run at once.
"""

from functools import cache
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

import numpy as np

from phase2_attention_kvcache.model.fused_kernels import Norm, activate_row, norm_row
from phase2_attention_kvcache.model.matrix_unit import UnitTiles
from phase2_attention_kvcache.model.numba_setup import narrow, new_scratch, room_for
from phase2_attention_kvcache.model.quantized_gemm import TILE, Codes, Tiles
from phase2_attention_kvcache.model.tiled_gemm import ROWS, FloatTiles, write_tile
from phase2_attention_kvcache.model.tiled_product import multiply_tile, new_inputs, tiles_of, write_input
from phase2_attention_kvcache.model.work_sharing import claim, new_board, next_part, note_published
from phase3_paged_attention.paging.cpu_kernel import attend_part, merge_parts, part_of, splits_for

from numba import njit  # isort: skip (torch before numba)

NORM, QKV, STORE, ATTEND, MERGE, OUT, NORM_MLP, UP, ACTIVATE, DOWN = range(10)
PHASES = 10  # of a layer

Matrix = Tiles | FloatTiles | UnitTiles


class Layers(NamedTuple):
    """The weights of all blocks: every array has one dimension more, the layer, in front.

    Attributes:
        q_norm, k_norm: of each head, or of a whole row, as wide as their weights say; of width 0: there is none.
        turns: bool [num_layers]: whether a layer rotates.
        gated: SwiGLU: `up` has 2 d_ff outputs, the gates first.
    """

    attention_norm: Norm
    qkv: Matrix
    q_norm: Norm
    k_norm: Norm
    turns: np.ndarray
    out: Matrix
    mlp_norm: Norm
    up: Matrix
    down: Matrix
    num_heads: int
    d_ff: int
    gated: bool


class Keys(NamedTuple):
    """Where keys and values lie, and the step's rotation.

    Attributes:
        cos, sin: float32 [B, head_dim / 2]; [B, 0]: no rotation.
        k_cache, v_cache: [num_layers, num_blocks, block_size, num_kv_heads, head_dim], float32, or bfloat16 as uint16.
        slots: [B], where each new key and value goes.
        block_tables: int32 [B, most blocks]. context_lens: int32 [B], the new token included.
        scales, windows, softcaps: of each layer's attention, see `as_numbers`.
    """

    cos: np.ndarray
    sin: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray
    slots: np.ndarray
    block_tables: np.ndarray
    context_lens: np.ndarray
    scales: np.ndarray
    windows: np.ndarray
    softcaps: np.ndarray


class Rows(NamedTuple):
    """What flows from phase to phase, for B rows.

    Attributes:
        stream: [B, d_model]. added: [B, d_model], what is to be added to it.
        qkv: [B, q_size + 2 kv_size]. q: [B, num_heads, head_dim].
        accs, largests, totals: what each split of the attention found, see `merge_parts`.
        raised: [B, outputs of `up`].
    """

    stream: np.ndarray
    added: np.ndarray
    qkv: np.ndarray
    q: np.ndarray
    accs: np.ndarray
    largests: np.ndarray
    totals: np.ndarray
    raised: np.ndarray


class Inputs(NamedTuple):
    """Of the four products, as their kernels take them: float32 [B, in], bfloat16 [B and `missing_rows`, in], or `Codes`."""

    qkv: np.ndarray | Codes
    out: np.ndarray | Codes
    up: np.ndarray | Codes
    down: np.ndarray | Codes


@njit(cache=True)
def norm_of(norms, layer):
    return Norm(norms.weight[layer], norms.bias[layer], norms.eps, norms.centered)


@njit(fastmath=True, cache=True, error_model="numpy")
def rotate(heads, cos, sin):
    """As `apply_rotary`, in place. heads: [num_heads, head_dim]. cos, sin: [head_dim / 2]."""
    half = len(cos)
    for head in range(len(heads)):
        for i in range(half):
            a, b = heads[head, i], heads[head, half + i]
            heads[head, i], heads[head, half + i] = a * cos[i] - b * sin[i], b * cos[i] + a * sin[i]


# ------------------------------------------------------------------ the parts


@njit(fastmath=True, cache=True, error_model="numpy")
def norm_part(rows, norm, inputs, row, scratch, board, phase):
    """Adds what the last product found to the stream. inputs (written): the norm of it."""
    width = rows.stream.shape[1]
    stream, normed = scratch[:width], scratch[width : 2 * width]
    for i in range(width):
        stream[i] = rows.stream[row, i] + rows.added[row, i]
    norm_row(stream, norm, normed)
    if claim(board, phase, row):
        rows.stream[row] = stream
        write_input(normed, row, inputs)
        note_published(board, phase)


@njit(fastmath=True, cache=True, error_model="numpy")
def product_part(inputs, weights, layer, out, part, scratch, board, phase):
    """A tile's outputs for some rows. out (written): float32 [B, outputs]."""
    pieces = pieces_of(len(out))
    tile, first_row = part // pieces, part % pieces * ROWS
    num_rows = min(ROWS, len(out) - first_row)
    multiply_tile(inputs, tiles_of(weights, layer), tile, first_row, num_rows, scratch)
    if claim(board, phase, part):
        write_tile(scratch, tile, first_row, num_rows, out)
        note_published(board, phase)


@njit(fastmath=True, cache=True, error_model="numpy")
def norm_groups(x, norm):
    """In place, each group of numbers that is as wide as the norm. x: [width of all heads]."""
    width = len(norm.weight)
    for start in range(0, len(x), width):
        norm_row(x[start : start + width], norm, x[start : start + width])


@njit(fastmath=True, cache=True, error_model="numpy")
def store_part(rows, layers, keys, layer, row, scratch, board, phase):
    """Norms and rotates the heads of a row, and stores its key and its value."""
    num_heads, head_dim = rows.q.shape[1:]
    block_size, num_kv_heads = keys.k_cache.shape[2:4]
    heads = scratch[: rows.qkv.shape[1]].reshape(-1, head_dim)
    heads[:] = rows.qkv[row].reshape(-1, head_dim)
    if layers.q_norm.weight.shape[1]:
        q_size, both = num_heads * head_dim, (num_heads + num_kv_heads) * head_dim
        norm_groups(scratch[:q_size], norm_of(layers.q_norm, layer))
        norm_groups(scratch[q_size:both], norm_of(layers.k_norm, layer))
    if layers.turns[layer]:
        rotate(heads[: num_heads + num_kv_heads], keys.cos[row], keys.sin[row])
    if claim(board, phase, row):
        rows.q[row] = heads[:num_heads]
        block, offset = keys.slots[row] // block_size, keys.slots[row] % block_size
        for head in range(num_kv_heads):
            for i in range(head_dim):
                key, value = heads[num_heads + head, i], heads[num_heads + num_kv_heads + head, i]
                keys.k_cache[layer, block, offset, head, i] = narrow(key, keys.k_cache)
                keys.v_cache[layer, block, offset, head, i] = narrow(value, keys.v_cache)
        note_published(board, phase)


@njit(fastmath=True, cache=True, error_model="numpy")
def attention_part(rows, keys, layer, part, scratch, board, phase):
    """Attention of a row over some of its blocks, as in `paged_decode_cpu`."""
    num_splits, num_heads, head_dim = rows.accs.shape[1:]
    b, split = part // num_splits, part % num_splits
    block_size, size = keys.k_cache.shape[2], num_heads * head_dim
    context_len, scale, softcap = keys.context_lens[b], keys.scales[layer], keys.softcaps[layer]
    bounds = part_of(context_len, keys.windows[layer], block_size, split, num_splits)
    acc = scratch[:size].reshape(num_heads, head_dim)
    largest, total = scratch[size : size + num_heads], scratch[size + num_heads : size + 2 * num_heads]
    k_cache, v_cache, table = keys.k_cache[layer], keys.v_cache[layer], keys.block_tables[b]
    attend_part(rows.q[b], k_cache, v_cache, table, context_len, bounds, scale, softcap, acc, largest, total)
    if claim(board, phase, part):
        rows.accs[b, split], rows.largests[b, split], rows.totals[b, split] = acc, largest, total
        note_published(board, phase)


@njit(fastmath=True, cache=True, error_model="numpy")
def merge_part(rows, inputs, row, scratch, board, phase):
    """What the splits of a row found becomes one."""
    attended = scratch[: rows.q[row].size]
    merge_parts(rows.accs[row], rows.largests[row], rows.totals[row], attended.reshape(rows.q[row].shape))
    if claim(board, phase, row):
        write_input(attended, row, inputs)
        note_published(board, phase)


@njit(fastmath=True, cache=True, error_model="numpy")
def activation_part(rows, layers, inputs, row, scratch, board, phase):
    active = scratch[: layers.d_ff]
    activate_row(rows.raised[row], layers.gated, active)
    if claim(board, phase, row):
        write_input(active, row, inputs)
        note_published(board, phase)


@njit(cache=True)
def pieces_of(batch):
    """Into how many pieces a product cuts its rows."""
    return (batch + ROWS - 1) // ROWS


# ------------------------------------------------------------------ the step


@njit(nogil=True, fastmath=True, cache=True, error_model="numpy")
def work_through(rows, inputs, layers, keys, board):
    """What every thread does: all phases in order, and of each the parts that it gets."""
    widest = max(2 * rows.stream.shape[1], rows.qkv.shape[1], layers.d_ff)
    scratch = new_scratch(max(ROWS * TILE, widest, rows.q[0].size + 2 * layers.num_heads))
    for phase in range(len(board.num_parts)):
        layer, kind = phase // PHASES, phase % PHASES
        part = next_part(board, phase)
        while part >= 0:
            if kind == NORM:
                norm = norm_of(layers.attention_norm, layer)
                norm_part(rows, norm, inputs.qkv, part, scratch, board, phase)
            elif kind == QKV:
                product_part(inputs.qkv, layers.qkv, layer, rows.qkv, part, scratch, board, phase)
            elif kind == STORE:
                store_part(rows, layers, keys, layer, part, scratch, board, phase)
            elif kind == ATTEND:
                attention_part(rows, keys, layer, part, scratch, board, phase)
            elif kind == MERGE:
                merge_part(rows, inputs.out, part, scratch, board, phase)
            elif kind == OUT:
                product_part(inputs.out, layers.out, layer, rows.added, part, scratch, board, phase)
            elif kind == NORM_MLP:
                norm = norm_of(layers.mlp_norm, layer)
                norm_part(rows, norm, inputs.up, part, scratch, board, phase)
            elif kind == UP:
                product_part(inputs.up, layers.up, layer, rows.raised, part, scratch, board, phase)
            elif kind == ACTIVATE:
                activation_part(rows, layers, inputs.down, part, scratch, board, phase)
            else:
                product_part(inputs.down, layers.down, layer, rows.added, part, scratch, board, phase)
            part = next_part(board, phase)


def new_step(stream, layers, keys):
    """What `work_through` takes: with room for what flows from phase to phase, and a board on which nothing is taken yet."""
    batch, width = stream.shape
    num_layers, _, _, num_kv_heads, head_dim = keys.k_cache.shape
    q_size, num_splits = layers.num_heads * head_dim, splits_for(batch)

    def room(*shape):
        return room_for((batch, *shape), np.float32)

    rows = Rows(
        stream,
        room(width),
        room(q_size + 2 * num_kv_heads * head_dim),
        room(layers.num_heads, head_dim),
        room(num_splits, layers.num_heads, head_dim),
        room(num_splits, layers.num_heads),
        room(num_splits, layers.num_heads),
        room(2 * layers.d_ff if layers.gated else layers.d_ff),
    )
    rows.added[:] = 0
    inputs = Inputs(
        new_inputs(layers.qkv, batch, width),
        new_inputs(layers.out, batch, q_size),
        new_inputs(layers.up, batch, width),
        new_inputs(layers.down, batch, layers.d_ff),
    )
    num_parts = [batch] * PHASES
    num_parts[ATTEND] = batch * num_splits
    for kind, matrix in ((QKV, layers.qkv), (OUT, layers.out), (UP, layers.up), (DOWN, layers.down)):
        num_parts[kind] = matrix.bias.shape[1] // TILE * pieces_of(batch)
    return rows, inputs, layers, keys, new_board(num_parts * num_layers)


STEPS: SimpleQueue = SimpleQueue()
"""Whichever helper is free takes a step from here, and works through it."""


@cache
def start_helper(number: int) -> None:
    """A thread that waits for steps. A number that was started already stays as it is."""
    Thread(target=help_with, args=(STEPS,), daemon=True).start()


def help_with(steps: SimpleQueue) -> None:
    while True:
        work_through(*steps.get())


def decode_blocks(stream, layers, keys, num_threads):
    """B new tokens, each a row, through all blocks. (A request has one of them, or its drafts as well.)

    Args:
        stream (changed): float32 [B, d_model].
        layers: `Layers`.
        keys: `Keys` (`k_cache` and `v_cache` changed).
    """
    step = new_step(stream, layers, keys)
    for number in range(num_threads - 1):
        start_helper(number)
        STEPS.put(step)
    work_through(*step)
    stream += step[0].added
