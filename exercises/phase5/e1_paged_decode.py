# %% [markdown]
# # 5.1 A kernel of your own: paged decode
#
# Attention over blocks, as in exercise 3.6, in Triton: the scattered blocks of 5.0c and the online softmax of 5.0b in one kernel. The
# grid has a program for each request and each query head. A program takes one query, goes through one block table, and writes one output.
#
# Without a GPU, Triton *interprets* the kernel line by line on the CPU. With a GPU it compiles the same kernel. The interpreter
# is Python and accepts code that the compiler rejects, so use these functions only:
#
# | in Triton | means |
# |---|---|
# | `tl.program_id(0)`, `tl.num_programs(0)` | the program's number along axis 0 of the grid, and how many there are |
# | `tl.arange(0, 8)`, `tl.zeros([8], tl.float32)` | 0, 1, ..., 7; eight zeros: the length is a power of two |
# | `tl.load(p + places, mask=m, other=0.0)`, `tl.store(p + places, x, mask=m)` | read and write at the offsets `places` from the address `p` |
# | `x[:, None]`, `x[None, :]` | a column, a row: a column may be the mask of a table |
# | `tl.sum(x, axis=1)`, `tl.max(x, axis=0)` | along an axis |
# | `tl.maximum(a, b)`, `tl.exp(x)`, `tl.where(m, a, b)`, `float("-inf")` | element by element; -infinity |
# | `tl.cdiv(a, b)`, `x.to(tl.float32)`, `x.to(tl.int64)` | a / b, rounded up; conversion to another dtype |
#
# **The address of a key.** `k_cache` is [num_blocks, BLOCK_SIZE, kv_heads, HEAD_DIM]. The key of KV head `h`, of token `t` in physical block `b`, begins at
#
#     b * block_stride  +  t * token_stride  +  h * head_stride          and has HEAD_DIM numbers
#
# By hand: blocks of 2 tokens, 2 KV heads, head_dim 4, without gaps. Then head_stride is 4, token_stride 8,
# block_stride 16. For token 1 of block 3, KV head 1: 48 + 8 + 4 = 60. Its key is the numbers 60 to 63.
#
# **Shared keys.** GROUP consecutive query heads share a KV head: with GROUP = 2, query heads 0 and 1 use KV head 0, and 2 and 3 use KV head 1.
#
# **The online softmax**, a block at a time: `scores` is BLOCK_SIZE numbers, and
#
#     new    = the larger of `largest` and the largest of the scores         (begin with -infinity)
#     shrink = exp(largest - new)              rescales the sums so far to the new maximum
#     total  = total * shrink + sum of exp(scores - new)
#     acc    = acc * shrink + sum of exp(scores - new) * values
#     at the end: acc / total
#
# The last block may belong to the request only in part. A place behind the end of the request must get the weight 0: exp(-infinity) is 0. And it
# must not be *read*: it may hold NaN, and 0 x NaN is NaN.
#
# Write the missing part: it computes HEAD_DIM numbers, `result`. Every request has at least one token. `block_tables` and
# `context_lens` are integers. The entries of a table behind a request's blocks are undefined. Convert a block's id to 64 bits before you multiply: in a
# large cache `b * block_stride` exceeds 2^31, and then it wraps round silently. (The last test has such blocks.)
# %%
from exercises.grading import check, hint
from phase5_real_gpu.kernels.triton_setup import require_triton, tl, triton

require_triton()  # it exists for Linux only


# %% tags=["answer"]
@triton.jit
def paged_decode(
    q,  # [requests, heads, HEAD_DIM]
    k_cache,  # [num_blocks, BLOCK_SIZE, kv_heads, HEAD_DIM]
    v_cache,  # the same, with the same strides
    block_tables,  # [requests, most blocks]
    context_lens,  # [requests]: tokens that each query attends to
    out,  # [requests, heads, HEAD_DIM]
    scale,  # 1 / sqrt(HEAD_DIM): each score is multiplied by it
    table_stride,  # from one request's row of block_tables to the next
    block_stride,  # of k_cache and v_cache: to the next block,
    token_stride,  # the next token of a block,
    head_stride,  # the next KV head of a token
    GROUP: tl.constexpr,  # query heads that share a KV head
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Compute attention of one query head of one request. Grid: (requests, heads)."""
    request = tl.program_id(0)
    head = tl.program_id(1)
    row = request * tl.num_programs(1) + head
    dims = tl.arange(0, HEAD_DIM)
    query = tl.load(q + row * HEAD_DIM + dims).to(tl.float32)  # HEAD_DIM numbers
    # BEGIN SOLUTION
    context_len = tl.load(context_lens + request)
    places = tl.arange(0, BLOCK_SIZE)
    largest = float("-inf")
    total = 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for logical in range(tl.cdiv(context_len, BLOCK_SIZE)):
        physical = tl.load(block_tables + request * table_stride + logical)
        physical = physical.to(tl.int64)  # an offset beyond 2^31 does not fit into 32 bits
        is_mine = logical * BLOCK_SIZE + places < context_len
        begins = physical * block_stride + places * token_stride + (head // GROUP) * head_stride
        where = begins[:, None] + dims[None, :]  # [BLOCK_SIZE, HEAD_DIM]
        keys = tl.load(k_cache + where, mask=is_mine[:, None], other=0.0)
        values = tl.load(v_cache + where, mask=is_mine[:, None], other=0.0)
        scores = tl.sum(query[None, :] * keys, axis=1) * scale
        scores = tl.where(is_mine, scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=0))
        shrink = tl.exp(largest - new)
        weights = tl.exp(scores - new)
        total = total * shrink + tl.sum(weights, axis=0)
        acc = acc * shrink + tl.sum(weights[:, None] * values, axis=0)
        largest = new
    result = acc / total
    # END SOLUTION
    tl.store(out + row * HEAD_DIM + dims, result)


# %% tags=["check"]
check("p5e1_paged_decode", paged_decode)
# %% [markdown]
# ## Into the engine
#
# In the small engine that you build in this course (`lab mine` runs it) your kernel computes every decode step of every layer. The
# interpreter is slow, so the answers are short.
# %% tags=["engine"]
from exercises.phase5.into_engine import kernel_in_the_engine

kernel_in_the_engine(paged_decode)
# %% [markdown]
# ## On a GPU
#
# This cell times the compiled kernel, beside the first step of the course's ladder, which is the same kernel, and the last step, which the engine
# uses. The floor is the bytes of all keys and values, divided by the bandwidth of your card. `decode_ladder.py` shows the steps in between.
# %% tags=["gpu"]
from exercises.phase5.on_gpu import time_your_kernel

time_your_kernel(paged_decode)
