# %% [markdown]
# # 5.0c A dot product over scattered blocks
#
# The keys of a request are in blocks, and its block table lists them. Logical block 0 holds the first BLOCK_SIZE tokens, anywhere in memory. Here
# a program computes the scores of one block: the dot product of the query with the key of each token.
#
#     block_table 7 3 12        BLOCK_SIZE = 4, 10 tokens        grid (3,)
#
#     program 0   block 7    tokens 0-3            program 2   block 12   tokens 8, 9; two places are empty
#     program 1   block 3    tokens 4-7
#
# **The address of a key.** `keys` is [num_blocks, BLOCK_SIZE, HEAD_DIM]. From one block to the next it is `block_stride` numbers, from one token of a
# block to the next `token_stride`. The key of place `p` in physical block `b` begins at
#
#     b * block_stride + p * token_stride          and has HEAD_DIM numbers
#
# A `tl.load` returns the block's id, from which the program computes the addresses of the keys. Convert it to 64 bits with `.to(tl.int64)` before you
# multiply: in a large cache the product exceeds 2^31.
#
# A table [BLOCK_SIZE, HEAD_DIM] of keys is a tile as in 5.0a, with other addresses. `tile * query[None, :]` multiplies each of its rows with
# the query, and `tl.sum(..., axis=1)` adds up each row.
#
# Empty places must be neither read nor written.
# %%
import torch

from exercises.grading import check, hint
from phase5_real_gpu.kernels.triton_setup import require_triton, tl, triton

require_triton()  # it exists for Linux only


# %% tags=["answer"]
@triton.jit
def block_scores(
    q,  # [HEAD_DIM]
    keys,  # [num_blocks, BLOCK_SIZE, HEAD_DIM]
    block_table,  # [blocks of the request]: the ids of its blocks, in the order of its tokens
    out,  # [length]: query * key of each token
    length,  # tokens of the request
    block_stride,  # of keys: to the next block,
    token_stride,  # to the next token of a block
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Compute the scores of one block. Grid: (length / BLOCK_SIZE, rounded up)."""
    # BEGIN SOLUTION
    logical = tl.program_id(0)
    physical = tl.load(block_table + logical).to(tl.int64)
    places, dims = tl.arange(0, BLOCK_SIZE), tl.arange(0, HEAD_DIM)
    tokens = logical * BLOCK_SIZE + places
    where = physical * block_stride + places[:, None] * token_stride + dims[None, :]
    tile = tl.load(keys + where, mask=(tokens < length)[:, None], other=0.0)
    scores = tl.sum(tile * tl.load(q + dims)[None, :], axis=1)
    tl.store(out + tokens, scores, mask=tokens < length)
    # END SOLUTION


# %% tags=["check"]
check("p5e0c_block_scores", block_scores)
# %% [markdown]
# ## What the compiler makes of it
#
# The blocks are scattered, and yet the loads are as wide as in 5.0a, because the numbers of a key are adjacent. What happens with keys of 2 numbers?
# %% tags=["engine", "compiler"]
from exercises.phase5.compiled import compile_your_kernel

q, keys, out = torch.empty(128), torch.empty(1000, 16, 128), torch.empty(1000)
arguments = q, keys, torch.empty(64, dtype=torch.int32), out, 1000, 16 * 128, 128
compile_your_kernel("p5e0c_block_scores", block_scores, *arguments, BLOCK_SIZE=16, HEAD_DIM=(128, 2))
