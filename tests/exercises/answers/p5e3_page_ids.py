from phase5_real_gpu.kernels.triton_setup import tl, triton


@triton.jit
def with_a_last_round(
    q, keys, block_table, out, length, block_stride, token_stride,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Right: the keys of a tile are computed with in the round after that of its page ids, the last tile behind the loop."""
    lanes, dims, heads = tl.arange(0, TILE), tl.arange(0, HEAD_DIM), tl.arange(0, 16)[:, None]
    queries = tl.load(q + heads * HEAD_DIM + dims[None, :])
    waiting, tokens = tl.load(block_table + lanes // BLOCK_SIZE, mask=lanes < length, other=0), lanes
    for first in range(TILE, length + TILE, TILE):
        coming = first + lanes
        pages = tl.load(block_table + coming // BLOCK_SIZE, mask=coming < length, other=0)
        place = waiting.to(tl.int64)[:, None] * block_stride + (tokens % BLOCK_SIZE * token_stride)[:, None]
        tile = tl.load(keys + place + dims[None, :], mask=tokens[:, None] < length, other=0.0)
        scores = tl.sum(queries[:, None, :] * tile[None, :, :], axis=2)
        tl.store(out + heads * length + tokens[None, :], scores, mask=tokens[None, :] < length)
        waiting, tokens = pages, coming


@triton.jit
def everything_first(
    q, keys, block_table, out, length, block_stride, token_stride,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    lanes, dims, heads = tl.arange(0, TILE), tl.arange(0, HEAD_DIM), tl.arange(0, 16)[:, None]
    queries = tl.load(q + heads * HEAD_DIM + dims[None, :])
    held = []
    for first in range(0, length, TILE):
        tokens = first + lanes
        held.append(tl.load(block_table + tokens // BLOCK_SIZE, mask=tokens < length, other=0))
    for first in range(0, length, TILE):
        tokens = first + lanes
        place = (
            held.pop(0).to(tl.int64)[:, None] * block_stride + (tokens % BLOCK_SIZE * token_stride)[:, None]
        )
        tile = tl.load(keys + place + dims[None, :], mask=tokens[:, None] < length, other=0.0)
        scores = tl.dot(queries, tl.trans(tile), input_precision="ieee")
        tl.store(out + heads * length + tokens[None, :], scores, mask=tokens[None, :] < length)


RIGHT = [with_a_last_round]
WRONG = {"all-up-front": everything_first}
