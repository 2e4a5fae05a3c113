"""Answers to exercise 3.2 that learners give."""

import numpy as np


def with_numpy(block_table, first, num_tokens, block_size):
    place = np.arange(first, first + num_tokens)
    return (np.array(block_table)[place // block_size] * block_size + place % block_size).tolist()


def all_slots_then_cut(block_table, first, num_tokens, block_size):
    everything = [block * block_size + i for block in block_table for i in range(block_size)]
    return everything[first : first + num_tokens]


def no_table(block_table, first, num_tokens, block_size):
    return [t // block_size * block_size + t % block_size for t in range(first, first + num_tokens)]


def not_multiplied(block_table, first, num_tokens, block_size):
    return [block_table[t // block_size] + t % block_size for t in range(first, first + num_tokens)]


def from_zero(block_table, first, num_tokens, block_size):
    return [block_table[t // block_size] * block_size + t % block_size for t in range(num_tokens)]


def runs_on(block_table, first, num_tokens, block_size):
    start = block_table[first // block_size] * block_size + first % block_size
    return list(range(start, start + num_tokens))


def swapped(block_table, first, num_tokens, block_size):
    return [
        block_table[t % block_size] * block_size + t // block_size for t in range(first, first + num_tokens)
    ]


def one_late(block_table, first, num_tokens, block_size):
    return [
        block_table[t // block_size] * block_size + t % block_size
        for t in range(first + 1, first + num_tokens + 1)
    ]


def one_short(block_table, first, num_tokens, block_size):
    return all_slots_then_cut(block_table, first, num_tokens - 1, block_size)


def up_to_num_tokens(block_table, first, num_tokens, block_size):
    """Takes num_tokens for the end, not for the number."""
    return [block_table[t // block_size] * block_size + t % block_size for t in range(first, num_tokens)]


def prints_only(block_table, first, num_tokens, block_size):
    all_slots_then_cut(block_table, first, num_tokens, block_size)


def to_the_end_of_the_table(block_table, first, num_tokens, block_size):
    return [block * block_size + i for block in block_table for i in range(block_size)][first:]


def one_by_one(block_table, first, num_tokens, block_size):
    """Right: a generator of tensors, which is a row of numbers too."""
    import torch

    table = torch.tensor(block_table)
    for token in range(first, first + num_tokens):
        yield table[token // block_size] * block_size + token % block_size


def sixteen(block_table, first, num_tokens, block_size):
    """The engine's block size, written down as a number."""
    return [block_table[t // 16] * 16 + t % 16 for t in range(first, first + num_tokens)]


def sixteen_in_one_place(block_table, first, num_tokens, block_size):
    return [block_table[t // block_size] * 16 + t % block_size for t in range(first, first + num_tokens)]


RIGHT = [with_numpy, all_slots_then_cut, one_by_one]
WRONG = {
    "logical-as-physical": no_table,
    "block-id-not-multiplied": not_multiplied,
    "starts-at-token-zero": from_zero,
    "runs-on-past-the-block": runs_on,
    "quotient-and-rest-swapped": swapped,
    "one-token-late": one_late,
    "block-size-fixed": sixteen,
    "too-few-slots": one_short,
    "too-many-slots": to_the_end_of_the_table,
    "returns-nothing": prints_only,
}
ALSO_WRONG = [("too-few-slots", up_to_num_tokens), ("block-size-fixed", sixteen_in_one_place)]
