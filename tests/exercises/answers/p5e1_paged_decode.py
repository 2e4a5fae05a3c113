from phase5_real_gpu.kernels.triton_setup import tl, triton


@triton.jit
def a_token_at_a_time(
    q, k_cache, v_cache, block_tables, context_lens, out, scale, table_stride, block_stride, token_stride, head_stride,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Right: no masks at all, since no token is read that is not the request's."""
    request, head = tl.program_id(0), tl.program_id(1)
    row = request * tl.num_programs(1) + head
    dims = tl.arange(0, HEAD_DIM)
    query = tl.load(q + row * HEAD_DIM + dims).to(tl.float32)
    largest, total = -float("inf"), 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for token in range(tl.load(context_lens + request)):
        block = tl.load(block_tables + request * table_stride + token // BLOCK_SIZE).to(tl.int64)
        place = block * block_stride + token % BLOCK_SIZE * token_stride + head // GROUP * head_stride + dims
        score = tl.sum(query * tl.load(k_cache + place), axis=0) * scale
        new = tl.maximum(largest, score)
        total = total * tl.exp(largest - new) + tl.exp(score - new)
        acc = acc * tl.exp(largest - new) + tl.exp(score - new) * tl.load(v_cache + place)
        largest = new
    result = acc / total
    tl.store(out + row * HEAD_DIM + dims, result)


def no_kernel(
    q, k_cache, v_cache, block_tables, context_lens, out, scale, *strides, GROUP, BLOCK_SIZE, HEAD_DIM
):
    """The line `@triton.jit` got lost."""
    out.copy_(q * scale)


RIGHT = [a_token_at_a_time]
WRONG = {
    "no-kernel": no_kernel,
    "raises": {"places < context_len": "places < contxt_len"},
}
