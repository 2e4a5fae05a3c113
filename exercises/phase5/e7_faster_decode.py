# %% [markdown]
# # 5.7 Make it faster
#
# This kernel is right, but slow. A program serves one KV head of one request. It processes the GROUP query heads that share this KV head one after the
# other, and for each of them it reads all keys and values, a token at a time. Three properties make a decode kernel fast, in this order:
#
# 1. **Bytes.** Each key and each value should be read once for all GROUP query heads. Here each is read GROUP times. (The L2 cache may serve the
#    repeats, but it does not hold the keys of a large batch.)
# 2. **Bytes in flight.** A load takes hundreds of clock cycles, whatever its size. Here a load fetches one key. A load of a whole block
#    makes the program wait BLOCK_SIZE times less often.
# 3. **Registers.** All numbers that a program holds at the same time take registers. If it needs too many, fewer programs fit on a multiprocessor, or
#    numbers are moved to memory and back (spills).
#
# Change the kernel until `check` accepts it: right results, each key and value read once, at most one load of keys per block. GROUP, BLOCK_SIZE
# and HEAD_DIM are powers of two. Arguments, strides and the online softmax are those of 5.1.
#
# To process all heads at once, add one dimension: `queries[:, None, :]` is [GROUP, 1, HEAD_DIM], `keys[None, :, :]` is [1, BLOCK_SIZE, HEAD_DIM], and the
# sum of their product over axis 2 is [GROUP, BLOCK_SIZE]: a score for each head and token. `largest` and `total` are then [GROUP];
# `tl.full([GROUP], float("-inf"), tl.float32)` makes the first.
# %%
from exercises.grading import check, hint
from phase5_real_gpu.kernels.triton_setup import require_triton, tl, triton

require_triton()  # it exists for Linux only


# %% tags=["answer"]
@triton.jit
def group_decode(
    q, k_cache, v_cache, block_tables, context_lens, out, scale, table_stride, block_stride, token_stride, head_stride,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Compute attention of the query heads that share a KV head. Grid: (requests, kv_heads)."""
    request, kv_head = tl.program_id(0), tl.program_id(1)
    first_row = (request * tl.num_programs(1) + kv_head) * GROUP
    context_len = tl.load(context_lens + request)
    dims = tl.arange(0, HEAD_DIM)
    # BEGIN SOLUTION
    # STUB: for head in range(GROUP):
    # STUB:     query = tl.load(q + (first_row + head) * HEAD_DIM + dims).to(tl.float32)
    # STUB:     largest, total = float("-inf"), 0.0
    # STUB:     acc = tl.zeros([HEAD_DIM], tl.float32)
    # STUB:     for token in range(context_len):
    # STUB:         block = tl.load(block_tables + request * table_stride + token // BLOCK_SIZE).to(tl.int64)
    # STUB:         place = block * block_stride + token % BLOCK_SIZE * token_stride + kv_head * head_stride + dims
    # STUB:         score = tl.sum(query * tl.load(k_cache + place), axis=0) * scale
    # STUB:         new = tl.maximum(largest, score)
    # STUB:         shrink, weight = tl.exp(largest - new), tl.exp(score - new)
    # STUB:         total = total * shrink + weight
    # STUB:         acc = acc * shrink + weight * tl.load(v_cache + place)
    # STUB:         largest = new
    # STUB:     tl.store(out + (first_row + head) * HEAD_DIM + dims, acc / total)
    rows = (first_row + tl.arange(0, GROUP))[:, None] * HEAD_DIM + dims[None, :]
    places = tl.arange(0, BLOCK_SIZE)
    queries = tl.load(q + rows).to(tl.float32)
    largest = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    acc = tl.zeros([GROUP, HEAD_DIM], tl.float32)
    for logical in range(tl.cdiv(context_len, BLOCK_SIZE)):
        block = tl.load(block_tables + request * table_stride + logical).to(tl.int64)
        exists = logical * BLOCK_SIZE + places < context_len
        begins = block * block_stride + places * token_stride + kv_head * head_stride
        where = begins[:, None] + dims[None, :]
        keys = tl.load(k_cache + where, mask=exists[:, None], other=0.0)
        values = tl.load(v_cache + where, mask=exists[:, None], other=0.0)
        scores = tl.sum(queries[:, None, :] * keys[None, :, :], axis=2) * scale
        scores = tl.where(exists[None, :], scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        shrink, weights = tl.exp(largest - new), tl.exp(scores - new[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None] + tl.sum(weights[:, :, None] * values[None, :, :], axis=1)
        largest = new
    tl.store(out + rows, acc / total[:, None])
    # END SOLUTION


# %% tags=["check"]
check("p5e7_faster_decode", group_decode)
# %% [markdown]
# ## The score
#
# The table compares your kernel with the given one and with `packed_kernel` of the course's ladder, which multiplies on the tensor cores. The interpreter
# counts bytes and loads; the compiler gives registers, programs and instructions, for Llama-3 8B's heads in bfloat16 on an H100.
# Which figure did you improve, and which figure is now the worst?
# %% tags=["engine", "compiler"]
from exercises.phase5.compiled import score_your_kernel

score_your_kernel(group_decode)
# %% [markdown]
# ## On a GPU
# %% tags=["gpu"]
from exercises.phase5.on_gpu import time_your_kernel

time_your_kernel(group_decode, "p5e7_faster_decode")
