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


MASK = "mask=is_mine[:, None], other=0.0"
NO_MASKS = {f", {MASK}": ""}
NO_WHERE = {'        scores = tl.where(is_mine, scores, float("-inf"))\n': ""}
MAXIMUM = "new = tl.maximum(largest, tl.max(scores, axis=0))"


def no_kernel(
    q, k_cache, v_cache, block_tables, context_lens, out, scale, *strides, GROUP, BLOCK_SIZE, HEAD_DIM
):
    """The line `@triton.jit` got lost."""
    out.copy_(q * scale)


RIGHT = [a_token_at_a_time]
WRONG = {
    "unmasked-tail": {**NO_MASKS, **NO_WHERE},
    "masked-with-zero": [
        {'scores, float("-inf"))': "scores, 0.0)"},
        NO_WHERE,
        {'scores, float("-inf"))': "scores, 0.0)", **NO_MASKS},
    ],
    "unused-places-read": {f"v_cache + where, {MASK}": "v_cache + where"},
    "acc-not-rescaled": {"acc * shrink": "acc"},
    "total-not-rescaled": {"total * shrink": "total"},
    "nothing-rescaled": {"acc * shrink": "acc", "total * shrink": "total"},
    "nan-everywhere": {"tl.exp(largest - new)": "tl.exp(new - largest)"},
    "page-id-as-token": [
        {"physical * block_stride": "physical * token_stride"},
        {"physical * block_stride + places * token_stride": "(physical + places) * token_stride"},
    ],
    "block-stride-times-size": {"physical * block_stride": "physical * BLOCK_SIZE * block_stride"},
    "strides-mixed": {
        "places * token_stride + (head // GROUP) * head_stride": "places * head_stride + (head // GROUP) * token_stride"
    },
    "strides-assumed": {
        "physical * block_stride": "physical * BLOCK_SIZE * (tl.num_programs(1) // GROUP) * HEAD_DIM"
    },
    "wrong-kv-head": [
        {"head // GROUP": "head % (tl.num_programs(1) // GROUP)"},
        {"(head // GROUP)": "head"},
    ],
    "no-scale": {"axis=1) * scale": "axis=1)"},
    "scale-twice": {"axis=1) * scale": "axis=1) * scale * scale"},
    "table-of-request-0": {"block_tables + request * table_stride": "block_tables"},
    "length-of-request-0": {"tl.load(context_lens + request)": "tl.load(context_lens)"},
    "logical-as-physical": {"physical * block_stride": "logical * block_stride"},
    "last-block-lost": {"tl.cdiv(context_len, BLOCK_SIZE)": "context_len // BLOCK_SIZE"},
    "total-of-the-last-block": {"total = total * shrink + ": "total = "},
    "not-divided": {"acc / total": "acc"},
    "softmax-of-each-block": {
        "acc = acc * shrink + tl.sum(weights[:, None] * values, axis=0)": "acc += tl.sum(weights[:, None] * values, axis=0) / tl.sum(weights, axis=0)",
        MAXIMUM: "new = tl.max(scores, axis=0)",
        "acc / total": "acc / tl.cdiv(context_len, BLOCK_SIZE)",
    },
    "no-maximum": {MAXIMUM: "new = 0.0", "tl.exp(largest - new)": "1.0"},
    "maximum-starts-at-zero": {'largest = float("-inf")': "largest = 0.0"},
    "place-in-32-bits": [
        {".to(tl.int64)": ""},
        {".to(tl.int64)": "", "physical * block_stride": "(physical * block_stride).to(tl.int64)"},
    ],
    "no-kernel": no_kernel,
    "largest-never-moves": {"        largest = new\n": ""},
    "keys-as-values": [
        {"tl.load(v_cache": "tl.load(k_cache"},
        {"tl.load(k_cache": "tl.load(v_cache"},
    ],
    "row-by-own-blocks": {"request * table_stride": "request * tl.cdiv(context_len, BLOCK_SIZE)"},
    "raises": {"places < context_len": "places < contxt_len"},
}
