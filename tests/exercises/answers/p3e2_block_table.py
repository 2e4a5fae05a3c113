"""Answers to exercise 3.2 that learners give."""

import numpy as np

from tests.exercises.changed import changed


def with_numpy(block_table, first, num_tokens, block_size):
    place = np.arange(first, first + num_tokens)
    return (np.array(block_table)[place // block_size] * block_size + place % block_size).tolist()


def all_slots_then_cut(block_table, first, num_tokens, block_size):
    everything = [block * block_size + i for block in block_table for i in range(block_size)]
    return everything[first : first + num_tokens]


def slot_by_slot(block_table, first, num_tokens, block_size):
    tokens = range(first, first + num_tokens)
    return [block_table[t // block_size] * block_size + t % block_size for t in tokens]


def runs_on(block_table, first, num_tokens, block_size):
    start = block_table[first // block_size] * block_size + first % block_size
    return list(range(start, start + num_tokens))


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
    "logical-as-physical": changed(slot_by_slot, {"block_table[t // block_size]": "t // block_size"}),
    "block-id-not-multiplied": changed(slot_by_slot, {" * block_size": ""}),
    "starts-at-token-zero": changed(slot_by_slot, {"(first, first + num_tokens)": "(num_tokens)"}),
    "runs-on-past-the-block": runs_on,
    "quotient-and-rest-swapped": changed(
        slot_by_slot,
        {
            "[t // block_size] * block_size + t % block_size": "[t % block_size] * block_size + t // block_size"
        },
    ),
    "one-token-late": changed(
        slot_by_slot, {"first, first + num_tokens": "first + 1, first + num_tokens + 1"}
    ),
    # The engine's block size, written down as a number.
    "block-size-fixed": [
        changed(slot_by_slot, {"// block_size": "// 16", "* block_size": "* 16", "% block_size": "% 16"}),
        changed(slot_by_slot, {"* block_size": "* 16"}),
    ],
    "too-few-slots": [
        changed(slot_by_slot, {"first + num_tokens": "first + num_tokens - 1"}),
        changed(slot_by_slot, {"first + num_tokens": "num_tokens"}),
    ],
    "too-many-slots": lambda block_table, first, num_tokens, block_size: [
        block * block_size + i for block in block_table for i in range(block_size)
    ][first:],
    "returns-nothing": prints_only,
    "wrong-result": changed(slot_by_slot, {"* block_size": "* 4"}),  # the block size of the examples
}
