def all_slots_then_cut(block_table, first, num_tokens, block_size):
    everything = [block * block_size + i for block in block_table for i in range(block_size)]
    return everything[first : first + num_tokens]


TOKENS = "range(first, first + num_tokens)"
RIGHT = all_slots_then_cut
WRONG = {
    "too-few-slots": {TOKENS: "range(first, num_tokens)"},
    "too-many-slots": {TOKENS: "range(first, len(block_table) * block_size)"},
    "wrong-result": {"* block_size": "* 4"},  # the block size of the examples
}
