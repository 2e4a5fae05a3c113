"""Answers to exercise 3.6 that learners give."""

import math

import numpy as np
import torch

from tests.exercises.changed import changed


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


def normalised_as_it_goes(q, k_cache, v_cache, block_table, context_len):
    """Right: keeps the result divided at all times, and the logarithm of the sum."""
    size, dim = k_cache.shape[1:]
    out, log_sum = torch.zeros(dim), torch.tensor(-math.inf)
    for logical in range((context_len + size - 1) // size):
        n = min(size, context_len - logical * size)
        scores = k_cache[block_table[logical]][:n] @ q * dim**-0.5
        here = scores.logsumexp(0)
        both = torch.logaddexp(log_sum, here)
        part = scores.softmax(0) @ v_cache[block_table[logical]][:n]
        out = out * (log_sum - both).exp() + part * (here - both).exp()
        log_sum = both
    return out


def walk(q, k_cache, v_cache, table, n, *, shrink_total=True, shrink_acc=True, start=-math.inf, mask=True, scale=True,
         use_table=True, divide=True, round_up=True):  # fmt: skip
    size, dim = k_cache.shape[1:]
    largest, total, acc = torch.tensor(start), torch.tensor(0.0), torch.zeros(dim)
    for i in range(-(-n // size) if round_up else n // size):
        block = table[i] if use_table else i
        here = min(size, n - i * size) if mask else size
        scores = k_cache[block, :here] @ q
        if scale:
            scores = scores / dim**0.5
        new = torch.maximum(largest, scores.max())
        shrink = (largest - new).exp()
        weights = (scores - new).exp()
        total = total * (shrink if shrink_total else 1) + weights.sum()
        acc = acc * (shrink if shrink_acc else 1) + weights @ v_cache[block, :here]
        largest = new
    return acc / total if divide else acc


def no_maximum(q, k_cache, v_cache, block_table, context_len):
    size, dim = k_cache.shape[1:]
    total, acc = 0.0, torch.zeros(dim)
    for t in range(context_len):
        block, place = block_table[t // size], t % size
        weight = torch.exp(k_cache[block, place] @ q / math.sqrt(dim))
        total, acc = total + weight, acc + weight * v_cache[block, place]
    return acc / total


def mean_of_blocks(q, k_cache, v_cache, block_table, context_len):
    size, dim = k_cache.shape[1:]
    outs = []
    for i, block in enumerate(block_table):
        n = min(size, context_len - i * size)
        outs.append((k_cache[block, :n] @ q / dim**0.5).softmax(0) @ v_cache[block, :n])
    return sum(outs) / len(outs)


def masks_after_reading(q, k_cache, v_cache, block_table, context_len):
    keys, values = k_cache[block_table].flatten(0, 1), v_cache[block_table].flatten(0, 1)
    scores = keys @ q / q.shape[0] ** 0.5
    scores[context_len:] = -math.inf
    return scores.softmax(0) @ values


def loops_not_rescaled(q, k_cache, v_cache, block_table, context_len):
    """A token at a time, and nothing is scaled down."""
    size, dim = k_cache.shape[1:]
    largest, total, acc = -math.inf, 0.0, torch.zeros(dim)
    for t in range(context_len):
        block, place = block_table[t // size], t % size
        score = float(k_cache[block, place] @ q) / math.sqrt(dim)
        largest = max(largest, score)
        weight = math.exp(score - largest)
        total, acc = total + weight, acc + weight * v_cache[block, place]
    return acc / total


def copies_together_first(q, k_cache, v_cache, block_table, context_len):
    """The right numbers, from a copy of all keys and values."""
    keys = torch.cat([k_cache[block] for block in block_table])[:context_len]
    values = torch.cat([v_cache[block] for block in block_table])[:context_len]
    return (keys @ q / math.sqrt(len(q))).softmax(0) @ values


def all_scores_first(q, k_cache, v_cache, block_table, context_len):
    """Two walks, with all weights kept in between."""
    size = k_cache.shape[1]
    slots = [(block_table[t // size], t % size) for t in range(context_len)]
    weights = torch.stack([k_cache[slot] @ q / math.sqrt(len(q)) for slot in slots]).softmax(0)
    return sum(w * v_cache[slot] for w, slot in zip(weights, slots))


def in_numpy(q, k_cache, v_cache, block_table, context_len):
    """Right: a block at a time, in numpy."""
    q, keys, values = q.numpy(), k_cache.numpy(), v_cache.numpy()
    largest, total, acc, left = -np.inf, 0.0, 0.0, context_len
    for block in block_table:
        here = min(left, keys.shape[1])
        scores = keys[block, :here] @ q / np.sqrt(len(q))
        new = np.maximum(largest, scores.max())
        weights = np.exp(scores - new)
        total = total * np.exp(largest - new) + weights.sum()
        acc = acc * np.exp(largest - new) + weights @ values[block, :here]
        largest, left = new, left - here
    return acc / total


RIGHT = [token_by_token, normalised_as_it_goes, in_numpy]
WRONG = {
    "acc-not-rescaled": lambda *args: walk(*args, shrink_acc=False),
    "sum-not-rescaled": lambda *args: walk(*args, shrink_total=False),
    "nothing-rescaled": [lambda *args: walk(*args, shrink_total=False, shrink_acc=False), loops_not_rescaled],
    "logical-as-physical": lambda *args: walk(*args, use_table=False),
    "reads-past-the-end": lambda *args: walk(*args, mask=False),
    "unused-places-read": masks_after_reading,
    "no-square-root": lambda *args: walk(*args, scale=False),
    "divided-by-head-dim": lambda q, *rest: token_by_token(q / q.shape[0] ** 0.5, *rest),
    "not-divided": lambda *args: walk(*args, divide=False),
    "last-block-lost": lambda *args: walk(*args, round_up=False),
    "maximum-starts-at-zero": [
        lambda *args: walk(*args, start=0.0),
        changed(token_by_token, {'float("-inf")': "0.0"}),
    ],
    "no-maximum": [
        no_maximum,
        changed(
            no_maximum, {"torch.exp(k_cache[block, place] @ q": "math.exp(float(k_cache[block, place] @ q)"}
        ),
    ],
    "softmax-of-each-block": mean_of_blocks,
    "keeps-everything": [copies_together_first, all_scores_first],
}
