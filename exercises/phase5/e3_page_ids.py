# %% [markdown]
# # 5.3 Block ids of a tile, one iteration ahead
#
# A **tile** is the number of tokens that a program fetches at a time (16, 64, 128); the card determines its best size. The size of a **block** (8, 16,
# 256 tokens) is that of the cache. The two may differ. A tile may need several blocks, a block may serve several tiles, and a tile may begin in the
# middle of a block. So each token of the tile needs its own block id. The i-th token has **place** i. In a tile that begins at token `first`:
#
#     token    = first + place
#     logical  = token // BLOCK_SIZE        index in the block table
#     offset   = token % BLOCK_SIZE         within the block
#     exists   = token < length             in the last tile some places have no token
#
# By hand: blocks of 4, tiles of 6, 15 tokens. The tile that begins at token 12:
#
#     place      0   1   2   3   4   5
#     token     12  13  14  15  16  17
#     logical    3   3   3   3   4   4
#     offset     0   1   2   3   0   1
#     exists     x   x   x   -   -   -          the table has 4 entries: there is no entry 4!
#
# **One iteration ahead.** The address of a key depends on the block table, which is in slow memory as well. A program that loads block ids and
# uses them at once waits for them, and requests the keys only afterwards. So the program loads the block ids of the *next* tile while it computes this
# tile ("hoisted" out of their iteration):
#
#     load the block ids of tile 0
#     in each iteration:  load the block ids of the next tile;  load the keys of this tile, with the block ids loaded before
#
# Write the kernel: the scores of one request, for the 16 query heads that share its keys (fewer are padded to 16, the smallest matrix of the tensor
# cores). `tl.dot(queries, tl.trans(tile), input_precision="ieee")` is [16, TILE]. Load the block ids of each tile once, and keep those of at most two tiles:
# a program has few registers. Read no entry of the table that the request does not have, and no key of another request.
# %%
import torch

from exercises.grading import check, hint
from phase5_real_gpu.kernels.triton_setup import require_triton, tl, triton

require_triton()  # it exists for Linux only


# %% tags=["answer"]
@triton.jit
def tile_scores(
    q,  # [16, HEAD_DIM]
    keys,  # [num_blocks, BLOCK_SIZE, HEAD_DIM]
    block_table,  # [blocks of the request]
    out,  # [16, length]
    length,  # tokens of the request, at least one
    block_stride,  # of keys: to the next block,
    token_stride,  # to the next token of a block
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
):
    """Compute all scores of a request. Grid: (1,)."""
    places, dims = tl.arange(0, TILE), tl.arange(0, HEAD_DIM)
    heads = tl.arange(0, 16)[:, None]
    queries = tl.load(q + heads * HEAD_DIM + dims[None, :])
    # BEGIN SOLUTION
    blocks = tl.load(block_table + places // BLOCK_SIZE, mask=places < length, other=0)
    for first in range(0, length, TILE):
        tokens = first + places
        coming = tokens + TILE
        next_blocks = tl.load(block_table + coming // BLOCK_SIZE, mask=coming < length, other=0)
        begins = blocks.to(tl.int64) * block_stride + tokens % BLOCK_SIZE * token_stride
        tile = tl.load(keys + begins[:, None] + dims[None, :], mask=(tokens < length)[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(tile), input_precision="ieee")
        tl.store(out + heads * length + tokens[None, :], scores, mask=(tokens < length)[None, :])
        blocks = next_blocks
    # END SOLUTION


# %% tags=["check"]
check("p5e3_page_ids", tile_scores)
# %% [markdown]
# ## What the compiler makes of it
#
# Triton's compiler starts the loads of later iterations early (its **pipeliner**): a **buffer** is space in shared memory for a tile of keys of a later
# iteration. How many buffers does your kernel have? Then load the block ids in the iteration that uses them, and compile again.
# %% tags=["engine", "compiler"]
from exercises.phase5.compiled import compile_your_kernel

q, keys = torch.empty(16, 128, dtype=torch.bfloat16), torch.empty(64, 16, 128, dtype=torch.bfloat16)
arguments = q, keys, torch.empty(64, dtype=torch.int32), torch.empty(16, 1024), 1024, 2048, 128
compile_your_kernel("p5e3_page_ids", tile_scores, *arguments, BLOCK_SIZE=16, HEAD_DIM=128, TILE=(16, 64))
