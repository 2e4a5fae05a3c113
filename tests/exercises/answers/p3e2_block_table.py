def all_slots_then_cut(block_table, first, num_tokens, block_size):
    everything = [block * block_size + i for block in block_table for i in range(block_size)]
    return everything[first : first + num_tokens]


def one_by_one(block_table, first, num_tokens, block_size):
    """Right: a generator of tensors, which is a row of numbers too."""
    import torch

    table = torch.tensor(block_table)
    for token in range(first, first + num_tokens):
        yield table[token // block_size] * block_size + token % block_size


TOKENS = "range(first, first + num_tokens)"
RIGHT = [all_slots_then_cut, one_by_one]
WRONG = {
    # The engine's block size, written down as a number.
    "block-size-fixed": [
        {"// block_size": "// 16", "* block_size": "* 16", "% block_size": "% 16"},
        {"* block_size": "* 16"},
    ],
    "too-few-slots": [
        {TOKENS: "range(first, first + num_tokens - 1)"},
        {TOKENS: "range(first, num_tokens)"},
    ],
    "too-many-slots": {TOKENS: "range(first, len(block_table) * block_size)"},
    "returns-nothing": {"return found": "pass"},
    "wrong-result": {"* block_size": "* 4"},  # the block size of the examples
}
