def step_by_step(other, pairs, num_cached, cache):
    """Right: an error is dealt with where it comes."""
    for i in range(num_cached, len(pairs)):
        theirs, own = pairs[i]
        try:
            cache[own] = other.read(theirs)
        except ConnectionError:
            return i
        if not other.clock() < other.lease_until:
            return i
    try:
        other.done()
    except ConnectionError:
        return len(pairs)
    return len(pairs)


def computed_by_cases(num_good, block_size, num_tokens):
    held = num_good * block_size
    return held if held < num_tokens else num_tokens - 1


RIGHT = [(step_by_step, computed_by_cases)]
