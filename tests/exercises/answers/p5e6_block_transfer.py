"""Answers to exercise 5.6 that learners give."""


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


READ = "            cache[own] = other.read(theirs)\n"
LATE = "            if other.clock() >= other.lease_until:\n                return good\n"
BEHIND = "        other.done()\n"
LEFT = "min(num_good * block_size, num_tokens - 1)"
RIGHT = [(step_by_step, computed_by_cases)]
WRONG = {
    "crash-not-caught": {"except ConnectionError": "except KeyError"},
    "reads-cached-again": {"pairs[num_cached:]": "pairs", "good = num_cached": "good = 0"},
    "wrong-place": {"cache[own]": "cache[theirs]"},
    "cached-not-counted": {"good = num_cached": "good = 0"},
    "crash-loses-all": {
        f"{16 * ' '}return good": f"{16 * ' '}return num_cached",
        "pass  #": "return num_cached  #",
    },
    "lease-loses-all": {
        LATE: "",
        BEHIND: f"""        if other.clock() >= other.lease_until and good > num_cached:
            return num_cached
{BEHIND}""",
    },
    "no-clock": {LATE: ""},
    "clock-before-reading": {READ + LATE: LATE + READ},
    "never-done": {BEHIND: ""},
    "done-too-early": {BEHIND: "", "    try:\n": f"    try:\n{BEHIND}"},
    "nothing-left-to-compute": {"num_tokens - 1": "num_tokens"},
    "more-than-there-are": {LEFT: "num_good * block_size"},
    "a-whole-block-again": {
        LEFT: "num_good * block_size if num_good * block_size < num_tokens else (num_good - 1) * block_size"
    },
    "one-less-always": {LEFT: "max(0, min(num_good * block_size, num_tokens) - 1)"},
}
