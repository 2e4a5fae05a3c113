from phase5_real_gpu.kernels.triton_setup import tl, triton


@triton.jit
def a_token_at_a_time(
    q,
    keys,
    block_table,
    out,
    length,
    block_stride,
    token_stride,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Right: no masks, since no token is read that is not the request's."""
    first, dims = tl.program_id(0) * BLOCK_SIZE, tl.arange(0, HEAD_DIM)
    block = keys + tl.load(block_table + tl.program_id(0)).to(tl.int64) * block_stride
    for token in range(first, min(first + BLOCK_SIZE, length)):
        key = tl.load(block + (token - first) * token_stride + dims)
        tl.store(out + token, tl.sum(key * tl.load(q + dims), axis=0))


RIGHT = [a_token_at_a_time]
