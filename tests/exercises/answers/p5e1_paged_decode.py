BY_TOKEN = {
    "range(tl.cdiv(context_len, BLOCK_SIZE))": "range(context_len)",
    "+ logical)": "+ logical // BLOCK_SIZE)",
    "logical * BLOCK_SIZE + places < context_len": "places == logical % BLOCK_SIZE",
}
RIGHT = BY_TOKEN
WRONG = {"no-kernel": {"@triton.jit\n": ""}, "raises": {"places < context_len": "places < contxt_len"}}
