"""Attention of one decode step over a paged KV cache, as a ladder of small kernels.

Each kernel, a rung of the ladder, changes one thing in the previous one. A kernel runs as
many *programs* at once, and each program computes from its number (`tl.program_id`) which part of the
data it processes. A program holds small arrays ("tiles") and loads, multiplies and stores them as a whole.

Shapes, the same for all rungs:
    q, out          [B, HQ, D]                       one token per request, HQ query heads
    k_cache,        [num_blocks, BLOCK_SIZE, HKV, D] any strides for block, token and head
    v_cache
    block_tables    [B, most blocks]                 int32
    context_lens    [B]                              int32; 0 gives zeros

HQ / HKV = GROUP query heads share a KV head. DIMS is D rounded up to a power of two: the arrays of a kernel
have such lengths, and a mask excludes the rest.

Sources: Kwon et al. (2023), section 4.3; Milakov and Gimelshein (2018), section 3, the online softmax; Dao,
"Flash-Decoding" (2023), split KV; the structure of vllm/v1/attention/ops/triton_unified_attention.py.
"""

from phase5_real_gpu.kernels.triton_setup import tl, triton

# ---------------------------------------------------------------------- shared by several rungs


@triton.jit
def load_queries(
    q_ptr, sequence, kv_head,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIMS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """[ROWS, DIMS]: the queries that share a KV head, rows and columns beyond them 0."""
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIMS)
    first = (sequence * tl.num_programs(1) + kv_head) * GROUP  # axis 1 of the grid: the KV heads
    mask = (rows < GROUP)[:, None] & (dims < D)[None, :]
    q = tl.load(q_ptr + (first + rows)[:, None] * D + dims[None, :], mask=mask, other=0.0)
    if UPCAST:  # the interpreter multiplies the bit patterns of bfloat16 instead of the numbers
        q = q.to(tl.float32)
    return q


@triton.jit
def store_queries(
    out_ptr, acc, total, sequence, kv_head,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Divide by the sum of weights, and write [ROWS, DIMS] to where `load_queries` read. An empty context gives zeros."""
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIMS)
    first = (sequence * tl.num_programs(1) + kv_head) * GROUP
    mask = (rows < GROUP)[:, None] & (dims < D)[None, :]
    acc = acc / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(out_ptr + (first + rows)[:, None] * D + dims[None, :], acc, mask=mask)


@triton.jit
def load_rows(ptr, offsets, valid, D: tl.constexpr, DIMS: tl.constexpr, UPCAST: tl.constexpr):
    """[tokens, DIMS]: the keys or values at `offsets`. Places that are not valid are not read: they may hold NaN."""
    dims = tl.arange(0, DIMS)
    mask = valid[:, None] & (dims < D)[None, :]
    rows = tl.load(ptr + offsets[:, None] + dims[None, :], mask=mask, other=0.0)
    if UPCAST:  # as in `load_queries`
        rows = rows.to(tl.float32)
    return rows


@triton.jit
def softmax_step(scores, values, largest, total, acc, BASE_2: tl.constexpr):
    """Add a tile of scores to the online softmax of each row.

    scores [ROWS, TILE], -inf where there is no token; values [TILE, DIMS]; largest, total [ROWS];
    acc [ROWS, DIMS]. With BASE_2 the scores are in units of ln 2, and weights are powers of 2, not of e.
    """
    new_largest = tl.maximum(largest, tl.max(scores, axis=1))
    if BASE_2:
        shrink = tl.exp2(largest - new_largest)
        weights = tl.exp2(scores - new_largest[:, None])
    else:
        shrink = tl.exp(largest - new_largest)
        weights = tl.exp(scores - new_largest[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
    return new_largest, total, acc


# ---------------------------------------------------------------------- 1: one program per query head


@triton.jit
def one_head_kernel(
    q_ptr, k_ptr, v_ptr, tables_ptr, lens_ptr, out_ptr, scale,
    table_stride, block_stride, token_stride, head_stride,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr, DIMS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Grid (B, HQ). `paged_attention_loops` of phase 3 with the two inner loops as arrays; TILE >= BLOCK_SIZE."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    row = sequence * tl.num_programs(1) + head
    context_len = tl.load(lens_ptr + sequence)
    dims, tokens = tl.arange(0, DIMS), tl.arange(0, TILE)
    q = tl.load(q_ptr + row * D + dims, mask=dims < D, other=0.0).to(tl.float32)

    largest, total = tl.full([], -float("inf"), tl.float32), tl.full([], 0.0, tl.float32)
    acc = tl.zeros([DIMS], tl.float32)
    for logical in range(tl.cdiv(context_len, BLOCK_SIZE)):
        # 64-bit: a cache has more than 2^31 numbers.
        block = tl.load(tables_ptr + sequence * table_stride + logical).to(tl.int64)
        valid = (tokens < BLOCK_SIZE) & (logical * BLOCK_SIZE + tokens < context_len)
        offsets = block * block_stride + tokens * token_stride + head // GROUP * head_stride
        k = load_rows(k_ptr, offsets, valid, D, DIMS, True)
        v = load_rows(v_ptr, offsets, valid, D, DIMS, True)
        scores = tl.where(valid, tl.sum(q[None, :] * k, axis=1) * scale, -float("inf"))  # [TILE]
        new_largest = tl.maximum(largest, tl.max(scores, axis=0))
        shrink, weights = tl.exp(largest - new_largest), tl.exp(scores - new_largest)
        total = total * shrink + tl.sum(weights, axis=0)
        acc = acc * shrink + tl.sum(weights[:, None] * v, axis=0)
        largest = new_largest
    acc = acc / tl.where(total == 0, 1.0, total)  # an empty context: zeros
    tl.store(out_ptr + row * D + dims, acc, mask=dims < D)


# ---------------------------------------------------------------------- 2: one program per KV head


@triton.jit
def packed_kernel(
    q_ptr, k_ptr, v_ptr, tables_ptr, lens_ptr, out_ptr, scale,
    table_stride, block_stride, token_stride, head_stride,
    GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr, DIMS: tl.constexpr,
    TILE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Grid (B, HKV). The group's queries are the rows of one tile; two matrix multiplications per block."""
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    context_len = tl.load(lens_ptr + sequence)
    tokens = tl.arange(0, TILE)
    q = load_queries(q_ptr, sequence, kv_head, GROUP, ROWS, D, DIMS, UPCAST)
    largest, total = tl.full([ROWS], -float("inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIMS], tl.float32)
    for logical in range(tl.cdiv(context_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + sequence * table_stride + logical).to(tl.int64)
        valid = (tokens < BLOCK_SIZE) & (logical * BLOCK_SIZE + tokens < context_len)
        offsets = block * block_stride + tokens * token_stride + kv_head * head_stride
        k = load_rows(k_ptr, offsets, valid, D, DIMS, UPCAST)
        v = load_rows(v_ptr, offsets, valid, D, DIMS, UPCAST)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [ROWS, TILE]
        scores = tl.where(valid[None, :], scores, -float("inf"))
        largest, total, acc = softmax_step(scores, v, largest, total, acc, False)
    store_queries(out_ptr, acc, total, sequence, kv_head, GROUP, ROWS, D, DIMS)


# ---------------------------------------------------------------------- 3: tiles of any block size


@triton.jit
def tile_kernel(
    q_ptr, k_ptr, v_ptr, tables_ptr, lens_ptr, out_ptr, scale,
    table_stride, block_stride, token_stride, head_stride,
    GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr, DIMS: tl.constexpr,
    TILE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Grid (B, HKV). TILE tokens per iteration, for every block size: the block of each token is looked up."""
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    context_len = tl.load(lens_ptr + sequence)
    table_ptr = tables_ptr + sequence * table_stride
    q = load_queries(q_ptr, sequence, kv_head, GROUP, ROWS, D, DIMS, UPCAST)
    largest, total = tl.full([ROWS], -float("inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIMS], tl.float32)
    for start in range(0, context_len, TILE):
        tokens = start + tl.arange(0, TILE)
        valid = tokens < context_len
        blocks = tl.load(table_ptr + tokens // BLOCK_SIZE, mask=valid, other=0).to(tl.int64)
        offsets = blocks * block_stride + tokens % BLOCK_SIZE * token_stride + kv_head * head_stride
        k = load_rows(k_ptr, offsets, valid, D, DIMS, UPCAST)
        v = load_rows(v_ptr, offsets, valid, D, DIMS, UPCAST)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(valid[None, :], scores, -float("inf"))
        largest, total, acc = softmax_step(scores, v, largest, total, acc, False)
    store_queries(out_ptr, acc, total, sequence, kv_head, GROUP, ROWS, D, DIMS)


# ---------------------------------------------------------------------- 4 and 5: block ids one iteration ahead


@triton.jit
def attend_hoisted(
    q, k_ptr, v_ptr, table_ptr, kv_head, begin, end, scale, block_stride, token_stride, head_stride,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr, DIMS: tl.constexpr,
    TILE: tl.constexpr, UPCAST: tl.constexpr, BASE_2: tl.constexpr,
):  # fmt: skip
    """Attention over the tokens `begin` to `end`. Loads the block ids of the next tile during this one."""
    largest, total = tl.full([ROWS], -float("inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIMS], tl.float32)
    ahead = begin + tl.arange(0, TILE)
    blocks = tl.load(table_ptr + ahead // BLOCK_SIZE, mask=ahead < end, other=0)
    for start in range(begin, end, TILE):
        tokens = start + tl.arange(0, TILE)
        valid = tokens < end
        offsets = (
            blocks.to(tl.int64) * block_stride + tokens % BLOCK_SIZE * token_stride + kv_head * head_stride
        )
        ahead = tokens + TILE
        blocks = tl.load(table_ptr + ahead // BLOCK_SIZE, mask=ahead < end, other=0)
        k = load_rows(k_ptr, offsets, valid, D, DIMS, UPCAST)
        v = load_rows(v_ptr, offsets, valid, D, DIMS, UPCAST)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(valid[None, :], scores, -float("inf"))
        largest, total, acc = softmax_step(scores, v, largest, total, acc, BASE_2)
    return largest, total, acc


@triton.jit
def hoisted_kernel(
    q_ptr, k_ptr, v_ptr, tables_ptr, lens_ptr, out_ptr, scale,
    table_stride, block_stride, token_stride, head_stride,
    GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr, DIMS: tl.constexpr,
    TILE: tl.constexpr, UPCAST: tl.constexpr, BASE_2: tl.constexpr,
):  # fmt: skip
    """Grid (B, HKV). BASE_2, rung 5: `scale` has been multiplied by log2(e), since exp(x) = 2 ** (x log2(e))."""
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    q = load_queries(q_ptr, sequence, kv_head, GROUP, ROWS, D, DIMS, UPCAST)
    _, total, acc = attend_hoisted(
        q, k_ptr, v_ptr, tables_ptr + sequence * table_stride, kv_head, 0, tl.load(lens_ptr + sequence),
        scale, block_stride, token_stride, head_stride, ROWS, BLOCK_SIZE, D, DIMS, TILE, UPCAST, BASE_2,
    )  # fmt: skip
    store_queries(out_ptr, acc, total, sequence, kv_head, GROUP, ROWS, D, DIMS)


# ---------------------------------------------------------------------- 6: split KV


@triton.jit
def split_kernel(
    q_ptr, k_ptr, v_ptr, tables_ptr, lens_ptr, partial_ptr, lse_ptr, scale_log2,
    table_stride, block_stride, token_stride, head_stride, split_tokens,
    GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr, DIMS: tl.constexpr,
    TILE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Grid (B, HKV, splits). Attention over `split_tokens` tokens, a multiple of TILE, of the context.

    Writes partial [B, HQ, splits, D] in float32, the attention within each split, and lse [B, HQ, splits],
    the base-2 logarithm of the split's sum of weights. With the two, splits can be merged exactly.
    """
    sequence, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIMS)
    begin = split * split_tokens
    end = tl.minimum(begin + split_tokens, tl.load(lens_ptr + sequence))
    q = load_queries(q_ptr, sequence, kv_head, GROUP, ROWS, D, DIMS, UPCAST)
    largest, total, acc = attend_hoisted(
        q, k_ptr, v_ptr, tables_ptr + sequence * table_stride, kv_head, begin, end,
        scale_log2, block_stride, token_stride, head_stride, ROWS, BLOCK_SIZE, D, DIMS, TILE, UPCAST, True,
    )  # fmt: skip
    empty = total == 0
    acc = acc / tl.where(empty, 1.0, total)[:, None]
    lse = tl.where(empty, -float("inf"), largest + tl.log2(tl.where(empty, 1.0, total)))
    place = ((sequence * tl.num_programs(1) + kv_head) * GROUP + rows) * tl.num_programs(2) + split
    tl.store(lse_ptr + place, lse, mask=rows < GROUP)
    mask = (rows < GROUP)[:, None] & (dims < D)[None, :]
    tl.store(partial_ptr + place.to(tl.int64)[:, None] * D + dims[None, :], acc, mask=mask)
