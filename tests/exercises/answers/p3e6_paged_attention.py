import math

import torch


def token_by_token(q, k_cache, v_cache, block_table, context_len):
    """Right: plain numbers, a token at a time."""
    size, dim = k_cache.shape[1:]
    largest, total, acc = float("-inf"), 0.0, [0.0] * dim
    for t in range(context_len):
        block, place = block_table[t // size], t % size
        key, value = k_cache[block, place].tolist(), v_cache[block, place].tolist()
        score = sum(a * b for a, b in zip(q.tolist(), key)) / math.sqrt(dim)
        if score > largest:
            shrink = math.exp(largest - score)
            total, acc, largest = total * shrink, [a * shrink for a in acc], score
        weight = math.exp(score - largest)
        total += weight
        acc = [a + weight * x for a, x in zip(acc, value)]
    return torch.tensor([a / total for a in acc])


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


RIGHT = [token_by_token]
WRONG = {
    "unused-places-read": masks_after_reading,
    "keeps-everything": copies_together_first,
}
