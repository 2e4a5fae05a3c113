import math

import torch

from exercises.phase3.grade_attention import BY_TOKEN


def masks_after_reading(q, k_cache, v_cache, block_table, context_len):
    keys, values = k_cache[block_table].flatten(0, 1), v_cache[block_table].flatten(0, 1)
    scores = keys @ q / q.shape[0] ** 0.5
    scores[context_len:] = -math.inf
    return scores.softmax(0) @ values


def copies_together_first(q, k_cache, v_cache, block_table, context_len):
    """The right numbers, from a copy of all keys and values."""
    keys = torch.cat([k_cache[block] for block in block_table])[:context_len]
    values = torch.cat([v_cache[block] for block in block_table])[:context_len]
    return (keys @ q / math.sqrt(len(q))).softmax(0) @ values


RIGHT = [BY_TOKEN | {"return acc / total": "return (acc / total).tolist()"}]
WRONG = {
    "unused-places-read": masks_after_reading,
    "keeps-everything": copies_together_first,
}
