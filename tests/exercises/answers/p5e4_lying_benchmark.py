from statistics import mean


def floor_in_seconds(record, card):
    """Right: by way of bytes and seconds."""
    one_token = 2 * record.num_kv_heads * record.head_dim * record.itemsize
    seconds = record.requests * record.context_len * one_token / (card.memory_gb_s * 10**9)
    return seconds * 10**6


def judge_from_the_other_end(record, card):
    """Right: first what is said, then what was measured. The mean without the slow repeats stands for the median."""
    fastest = min(record.repeats_us)
    quiet = [us for us in record.repeats_us if us < 2 * fastest]
    usual = mean(quiet)
    least = floor_in_seconds(record, card)
    if usual >= 0.9 * least:
        if record.says_us > 1.3 * usual:
            slow = [i for i, us in enumerate(record.repeats_us) if us >= 2 * fastest]
            if record.new_tokens[slow[0]] > record.requests:
                return "prefill"
            return "compile" if slow == [0] else "outlier"
        said = record.says_gb_s * 1e9 * record.says_us * 1e-6
        read = least * 1e-6 * card.memory_gb_s * 1e9
        return "nothing" if abs(said - read) < 0.2 * read else "bytes"
    size = least * 1e-6 * card.memory_gb_s * 1e9
    if size > card.cache_mb * 1e6 or usual < 0.7 * size / (card.cache_gb_s * 1e9) * 1e6:
        return "no wait"
    return "cache"


TOO_FAST = "    if usual < 0.9 * floor:"
FAST_ENOUGH = " and usual > 0.9 * size / (card.cache_gb_s * 1e3)"
CACHE = 'return "cache" if from_cache else "no wait"'
PULLED_UP = "if record.says_us > 1.2 * usual:"
COMPILE = 'return "compile" if record.repeats_us[0] == max(record.repeats_us) else "outlier"'
RIGHT = [(floor_in_seconds, judge_from_the_other_end)]
WRONG = {
    "cache-taken-for-no-wait": {CACHE: 'return "no wait"'},
    # Below the floor and fits: cache. How fast the cache is was not asked.
    "no-wait-taken-for-cache": {FAST_ENOUGH: ""},
    "fits-is-not-enough": {
        TOO_FAST: f'    if size <= card.cache_mb * 1e6:\n        return "cache"\n{TOO_FAST}'
    },
    "slow-is-no-lie": {TOO_FAST: f'    if usual > 4 * floor:\n        return "no wait"\n{TOO_FAST}'},
    # Asks the author: more GB/s than the card has.
    "believes-the-author": {
        TOO_FAST: f"""    if record.says_gb_s > card.memory_gb_s:
        return "no wait" if record.says_gb_s > card.cache_gb_s else "cache"
{TOO_FAST}"""
    },
    "bytes-not-checked": {' if 0.8 < record.says_gb_s / gb_s < 1.25 else "bytes"': ""},
    # Looks at the repeats, and not at what is said.
    "left-out-does-no-harm": {
        PULLED_UP: "if record.says_us > 1.2 * usual or max(record.repeats_us) > 3 * usual:"
    },
    "prefill-taken-for-something-else": {'return "prefill"': 'return "outlier"'},
    "compile-taken-for-outlier": {COMPILE: 'return "outlier"'},
    "outlier-taken-for-compile": {COMPILE: 'return "compile"'},
    "mean-not-seen": {PULLED_UP: f'{PULLED_UP}\n        return "nothing"'},
    # GB/s beside the median, before anything else.
    "bytes-taken-for-the-mean": {
        TOO_FAST: f"""    if not 0.8 < record.says_gb_s / (size / (usual * 1e3)) < 1.25:
        return "bytes"
{TOO_FAST}"""
    },
    "too-fast-not-seen": {CACHE: 'return "nothing"'},
    "not-one-of-the-words": {'"no wait"': '"missing synchronise"'},
    # Wants to see 95% of the floor.
    "honest-called-a-liar": {
        'return "nothing"': 'return "no wait" if floor / record.says_us < 0.95 else "nothing"'
    },
    "card-built-in": [
        {"    floor, usual =": "    card = Card()\n    floor, usual ="},
        {"card.cache_mb * 1e6": "50e6"},
    ],
}
