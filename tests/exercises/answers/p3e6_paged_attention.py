from exercises.phase3.grade_attention import BY_TOKEN

SHAPE = "block_size, head_dim = k_cache.shape[1:]"


def at_once(end, hidden):
    """From a copy of all keys and values."""
    return {
        SHAPE: f"""keys, values = (c[block_table].flatten(0, 1){end} for c in (k_cache, v_cache))
    scores = keys @ q / math.sqrt(len(q))
    {hidden}
    return scores.softmax(0) @ values
    {SHAPE}"""
    }


RIGHT = BY_TOKEN | {"return acc / total": "return (acc / total).tolist()"}
WRONG = {
    "unused-places-read": at_once("", "scores[context_len:] = -math.inf"),
    "keeps-everything": at_once("[:context_len]", "pass"),
}
