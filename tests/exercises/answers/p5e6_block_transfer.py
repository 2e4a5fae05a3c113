"""Answers to exercise 5.6 that learners give."""

from tests.exercises.changed import changed


def load(other, pairs, num_cached, cache):
    good = num_cached
    try:
        for theirs, own in pairs[num_cached:]:
            content = other.read(theirs)
            if other.clock() >= other.lease_until:
                break
            cache[own] = content
            good += 1
        other.done()
    except ConnectionError:
        pass
    return good


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


def computed(num_good, block_size, num_tokens):
    return min(num_good * block_size, num_tokens - 1)


def computed_by_cases(num_good, block_size, num_tokens):
    held = num_good * block_size
    return held if held < num_tokens else num_tokens - 1


def before_reading(other, pairs, num_cached, cache):
    good = num_cached
    try:
        for theirs, own in pairs[num_cached:]:
            if other.clock() >= other.lease_until:
                break
            cache[own] = other.read(theirs)
            good += 1
        other.done()
    except ConnectionError:
        pass
    return good


def all_or_nothing(other, pairs, num_cached, cache):
    try:
        for theirs, own in pairs[num_cached:]:
            cache[own] = other.read(theirs)
            if other.clock() >= other.lease_until:
                break
        else:
            other.done()
            return len(pairs)
    except ConnectionError:
        return num_cached
    return num_cached


def done_first(other, pairs, num_cached, cache):
    try:
        other.done()
    except ConnectionError:
        return num_cached
    good = num_cached
    try:
        for theirs, own in pairs[num_cached:]:
            cache[own] = other.read(theirs)
            if other.clock() >= other.lease_until:
                break
            good += 1
    except ConnectionError:
        pass
    return good


def lease_loses_all(other, pairs, num_cached, cache):
    good = num_cached
    try:
        for theirs, own in pairs[num_cached:]:
            cache[own] = other.read(theirs)
            good += 1
        if other.clock() >= other.lease_until and good > num_cached:
            return num_cached
        other.done()
    except ConnectionError:
        pass
    return good


RIGHT = [(load, computed), (step_by_step, computed_by_cases)]
WRONG = {
    "crash-not-caught": (changed(load, {"except ConnectionError": "except KeyError"}), computed),
    "reads-cached-again": (changed(load, {"pairs[num_cached:]": "pairs", "good = num_cached": "good = 0"}), computed),
    "wrong-place": (changed(load, {"cache[own]": "cache[theirs]"}), computed),
    "cached-not-counted": (changed(load, {"good = num_cached": "good = 0"}), computed),
    "crash-loses-all": (all_or_nothing, computed),
    "lease-loses-all": (lease_loses_all, computed),
    "no-clock": (changed(load, {"other.clock() >= other.lease_until": "False"}), computed),
    "clock-before-reading": (before_reading, computed),
    "never-done": (changed(load, {"other.done()": "pass"}), computed),
    "done-too-early": (done_first, computed),
    "nothing-left-to-compute": (load, changed(computed, {"num_tokens - 1": "num_tokens"})),
    "more-than-there-are": (load, changed(computed, {"min(num_good * block_size, num_tokens - 1)": "num_good * block_size"})),
    "a-whole-block-again": (load, changed(computed_by_cases, {"num_tokens - 1": "held - block_size"})),
    "one-less-always": (load, changed(computed, {"min(num_good * block_size, num_tokens - 1)": "max(0, min(num_good * block_size, num_tokens) - 1)"})),
}  # fmt: skip
