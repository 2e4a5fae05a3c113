"""The loop that both attention kernels share: it processes one tile of keys and values at a time, found by the block table.

- A tile may be wider than a block: its width depends on the GPU, not on the block size.
- The block numbers of the *next* tile are loaded during this tile. Otherwise the addresses of the keys depend
  on a load that has just begun, and no key can be fetched ahead.

Exponentials are powers of two (exp2, one instruction): the factor log2(e) is folded into the scale.

Sources: Milakov and Gimelshein (2018) for the online softmax; vLLM, v1/attention/ops/triton_unified_attention.py.
"""

from phase5_real_gpu.kernels.triton_setup import tl, triton


@triton.jit
def apply_softcap(scores, SOFTCAP: tl.constexpr):
    """SOFTCAP x tanh(x), for tanh(x) = 1 - 2 / (e^2x + 1). scores: x times 2 log2(e), so that exp2 gives e^2x."""
    return SOFTCAP * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))


@triton.jit
def widen(x, like):
    """Stored numbers in the format of the queries. fp8 is converted by way of float16: one instruction converts two numbers."""
    if x.dtype.is_fp8():
        x = x.to(tl.float16)
    return x.to(like.dtype)


@triton.jit
def attend_tiles(
    acc,  # [ROWS, DIMS] weighted values so far
    total,  # [ROWS] sum of weights so far
    largest,  # [ROWS] largest score so far
    q_tile,  # [ROWS, DIMS]
    row_positions,  # [ROWS] the last token that each row sees
    k_cache,
    v_cache,
    table,  # [most blocks]: the block table of the request
    kv_head,
    first,
    end,  # tokens first to end; without a mask a multiple of TILE
    score_scale,
    kv_block_stride,
    kv_token_stride,
    kv_head_stride,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIMS: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,  # whether some row may not see some of these tokens
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """Computes attention of [ROWS] rows over the tokens `first` to `end`, and adds it to the state of the online softmax."""
    places_in_tile = tl.arange(0, TILE)
    dims = tl.arange(0, DIMS)
    is_dim = dims < HEAD_DIM
    tokens = first + places_in_tile
    blocks = tl.load(table + tokens // BLOCK_SIZE, mask=tokens < end, other=0)
    for start in range(first, end, TILE):
        tokens = start + places_in_tile
        # The next tile's blocks, one iteration early, so that its keys can be fetched ahead.
        next_tokens = tokens + TILE
        next_blocks = tl.load(table + next_tokens // BLOCK_SIZE, mask=next_tokens < end, other=0)
        # 64-bit: a cache has more than 2^31 numbers.
        slots = (
            blocks.to(tl.int64) * kv_block_stride
            + (tokens % BLOCK_SIZE) * kv_token_stride
            + kv_head * kv_head_stride
        )
        exists = tokens < end
        keys = tl.load(
            k_cache + slots[None, :] + dims[:, None], mask=exists[None, :] & is_dim[:, None], other=0.0
        )
        scores = tl.dot(q_tile, widen(keys, q_tile), input_precision="ieee") * score_scale
        if SOFTCAP is not None:
            scores = apply_softcap(scores, SOFTCAP)
        if MASKED:
            scores = tl.where(tokens[None, :] <= row_positions[:, None], scores, float("-inf"))
            if WINDOW is not None:
                scores = tl.where(tokens[None, :] > row_positions[:, None] - WINDOW, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        shrink = tl.exp2(largest - new_largest)
        weights = tl.exp2(scores - new_largest[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        values = tl.load(
            v_cache + slots[:, None] + dims[None, :], mask=exists[:, None] & is_dim[None, :], other=0.0
        )
        weights = weights.to(q_tile.dtype)
        acc = acc * shrink[:, None] + tl.dot(weights, widen(values, q_tile), input_precision="ieee")
        largest = new_largest
        blocks = next_blocks
    return acc, total, largest
