def no_kernel(
    q, k_cache, v_cache, block_tables, context_lens, out, scale, *strides, GROUP, BLOCK_SIZE, HEAD_DIM
):
    """The line `@triton.jit` got lost."""
    out.copy_(q * scale)


BY_TOKEN = {
    "range(tl.cdiv(context_len, BLOCK_SIZE))": "range(context_len)",
    "+ logical)": "+ logical // BLOCK_SIZE)",
    "logical * BLOCK_SIZE + places < context_len": "places == logical % BLOCK_SIZE",
}
RIGHT = [BY_TOKEN]
WRONG = {
    "no-kernel": no_kernel,
    "raises": {"places < context_len": "places < contxt_len"},
}
