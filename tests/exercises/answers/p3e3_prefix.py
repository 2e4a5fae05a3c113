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


RIGHT = [(names_one_by_one, find_and_drop)]
