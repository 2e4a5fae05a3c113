"""Answers to exercise 3.2 that learners give."""

import numpy as np


def with_numpy(block_table, first, num_tokens, block_size):
    place = np.arange(first, first + num_tokens)
    return (np.array(block_table)[place // block_size] * block_size + place % block_size).tolist()


def all_slots_then_cut(block_table, first, num_tokens, block_size):
    everything = [block * block_size + i for block in block_table for i in range(block_size)]
    return everything[first : first + num_tokens]


def runs_on(block_table, first, num_tokens, block_size):
    start = block_table[first // block_size] * block_size + first % block_size
    return list(range(start, start + num_tokens))


def one_late(block_table, first, num_tokens, block_size):
    return [
        block_table[t // block_size] * block_size + t % block_size
        for t in range(first + 1, first + num_tokens + 1)
    ]


def prints_only(block_table, first, num_tokens, block_size):
    all_slots_then_cut(block_table, first, num_tokens, block_size)


def one_by_one(block_table, first, num_tokens, block_size):
    """Right: a generator of tensors, which is a row of numbers too."""
    import torch

    table = torch.tensor(block_table)
    for token in range(first, first + num_tokens):
        yield table[token // block_size] * block_size + token % block_size


RIGHT = [with_numpy, all_slots_then_cut, one_by_one]
WRONG = {
    "logical-as-physical": lambda block_table, first, num_tokens, block_size: [
        t // block_size * block_size + t % block_size for t in range(first, first + num_tokens)
    ],
    "block-id-not-multiplied": lambda block_table, first, num_tokens, block_size: [
        block_table[t // block_size] + t % block_size for t in range(first, first + num_tokens)
    ],
    "starts-at-token-zero": lambda block_table, first, num_tokens, block_size: [
        block_table[t // block_size] * block_size + t % block_size for t in range(num_tokens)
    ],
    "runs-on-past-the-block": runs_on,
    "quotient-and-rest-swapped": lambda block_table, first, num_tokens, block_size: [
        block_table[t % block_size] * block_size + t // block_size for t in range(first, first + num_tokens)
    ],
    "one-token-late": one_late,
    # The engine's block size, written down as a number.
    "block-size-fixed": [
        lambda block_table, first, num_tokens, block_size: [
            block_table[t // 16] * 16 + t % 16 for t in range(first, first + num_tokens)
        ],
        lambda block_table, first, num_tokens, block_size: [
            block_table[t // block_size] * 16 + t % block_size for t in range(first, first + num_tokens)
        ],
    ],
    "too-few-slots": [
        lambda block_table, first, num_tokens, block_size: all_slots_then_cut(
            block_table, first, num_tokens - 1, block_size
        ),
        lambda block_table, first, num_tokens, block_size: [
            block_table[t // block_size] * block_size + t % block_size for t in range(first, num_tokens)
        ],
    ],
    "too-many-slots": lambda block_table, first, num_tokens, block_size: [
        block * block_size + i for block in block_table for i in range(block_size)
    ][first:],
    "returns-nothing": prints_only,
}
