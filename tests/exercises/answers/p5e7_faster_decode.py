from tests.exercises.answers.p5e1_paged_decode import BY_TOKEN

HEADS_INSIDE = {  # a loop over the heads of the group, with keys and values of a block at hand
    "scores = tl.sum(queries[:, None, :] * keys[None, :, :], axis=2) * scale": """scores = tl.zeros([GROUP, BLOCK_SIZE], tl.float32)
        for head in range(GROUP):
            query = tl.load(q + (first_row + head) * HEAD_DIM + dims)
            score = tl.sum(query[None, :] * keys, axis=1) * scale
            scores = tl.where(tl.arange(0, GROUP)[:, None] == head, score[None, :], scores)"""
}
AGAIN = "        keys = tl.load(k_cache + where, mask=exists[:, None], other=0.0)\n"
VALUES = AGAIN.replace("keys", "values").replace("k_cache", "v_cache")
RIGHT = HEADS_INSIDE
WRONG = {
    "each-head-again": {AGAIN: AGAIN + AGAIN, VALUES: VALUES + VALUES},
    "values-again": {VALUES: VALUES + VALUES},
    "less-than-a-block": BY_TOKEN,
}
