"""Answers to exercise 3.3 that learners give."""

from hashlib import blake2b


# Right: the whole beginning is the name, with no chain at all (it costs more).
def names_of_beginnings(tokens, size):
    ends = range(size, len(tokens) + 1, size)
    return [blake2b(",".join(map(str, tokens[:end])).encode()).digest() for end in ends]


def find_with_while(tokens, size, cached):
    known, out = names_of_beginnings(tokens, size), []
    while len(out) < len(known) and known[len(out)] in cached and (len(out) + 1) * size < len(tokens):
        out.append(cached[known[len(out)]])
    return out


def names_one_by_one(tokens, size):
    """Right: the beginnings themselves as names, one by one."""
    for end in range(size, len(tokens) + 1, size):
        yield tuple(tokens[:end])


def find_and_drop(tokens, size, cached):
    """Right: walks on to the end, and gives the last block back if nothing is left."""
    found = []
    for name in names_one_by_one(tokens, size):
        if name not in cached:
            break
        found.append(cached[name])
    if found and len(found) * size == len(tokens):
        found.pop()
    return tuple(found)


ENDS = "range(block_size, len(token_ids) + 1, block_size)"
TOKENS = "token_ids[end - block_size : end]"
RIGHT = [(names_of_beginnings, find_with_while), (names_one_by_one, find_and_drop)]
WRONG = {
    "hash-without-parent": {"hash_block(parent,": 'hash_block(b"",'},
    "partial-block-named": [
        {ENDS: "range(block_size, len(token_ids) + block_size, block_size)"},
        {ENDS: "range(block_size, len(token_ids) + 2, block_size)"},  # if one is lacking
    ],
    "parent-is-not-the-block-before": {"hash_block(parent,": 'hash_block(names[0] if names else b"",'},
    "order-lost": {TOKENS: f"[sum({TOKENS})]"},
    "tokens-run-together": {f"hash_block(parent, {TOKENS})": '"".join(map(str, token_ids[:end])).encode()'},
    "nothing-left-to-compute": {"token_ids[:-1]": "token_ids"},
    "goes-on-after-a-miss": {"break": "continue"},
    "last-block-given-away": {
        "(token_ids[:-1], block_size)": "(token_ids, block_size)[: len(token_ids) // block_size - 1]"
    },
    "names-in-place-of-blocks": {"cached[name]": "name"},
}
