"""Answers to exercise 3.3 that learners give."""

from hashlib import blake2b

from phase3_paged_attention.paging.block_table import hash_block
from tests.exercises.changed import changed


def names(tokens, size):
    out, parent = [], b""
    for i in range(len(tokens) // size):
        parent = hash_block(parent, tokens[i * size : (i + 1) * size])
        out.append(parent)
    return out


def find(tokens, size, cached):
    out = []
    for name in names(tokens, size)[: (len(tokens) - 1) // size]:
        if name not in cached:
            break
        out.append(cached[name])
    return out


# Right: the whole beginning is the name, with no chain at all (it costs more).
def names_of_beginnings(tokens, size):
    ends = range(size, len(tokens) + 1, size)
    return [blake2b(",".join(map(str, tokens[:end])).encode()).digest() for end in ends]


def find_with_while(tokens, size, cached):
    known, out = names_of_beginnings(tokens, size), []
    while len(out) < len(known) and known[len(out)] in cached and (len(out) + 1) * size < len(tokens):
        out.append(cached[known[len(out)]])
    return out


def names_with_first_parent(tokens, size):
    out = []
    for i in range(len(tokens) // size):
        out.append(hash_block(out[0] if out else b"", tokens[i * size : (i + 1) * size]))
    return out


def names_of_digits(tokens, size):
    """Writes the tokens one behind the other."""
    ends = range(size, len(tokens) + 1, size)
    return [blake2b("".join(map(str, tokens[:end])).encode()).digest() for end in ends]


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


find_everything = changed(find, {"[: (len(tokens) - 1) // size]": ""})


RIGHT = [(names, find), (names_of_beginnings, find_with_while), (names_one_by_one, find_and_drop)]
WRONG = {
    "hash-without-parent": (changed(names, {"hash_block(parent,": 'hash_block(b"",'}), find),
    "partial-block-named": [
        (changed(names, {"len(tokens) // size": "-(-len(tokens) // size)"}), find),
        (changed(names, {"len(tokens) // size": "(len(tokens) + 1) // size"}), find),  # if one is lacking
    ],
    "parent-is-not-the-block-before": (names_with_first_parent, find),
    "order-lost": (
        changed(names, {"tokens[i * size : (i + 1) * size]": "[sum(tokens[i * size : (i + 1) * size])]"}),
        find,
    ),
    "tokens-run-together": (names_of_digits, find),
    "nothing-left-to-compute": (names, find_everything),
    "goes-on-after-a-miss": (names, changed(find, {"break": "continue"})),
    "last-block-given-away": (
        names,
        lambda tokens, size, cached: find_everything(tokens, size, cached)[: len(tokens) // size - 1],
    ),
    # Returns the names in place of the blocks.
    "names-in-place-of-blocks": (
        names,
        lambda tokens, size, cached: [name for name in names(tokens, size) if name in cached],
    ),
}
