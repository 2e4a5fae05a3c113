TOO_FAST = "    if usual < 0.9 * floor:"
FAST_ENOUGH = " and usual > 0.9 * size / (card.cache_gb_s * 1e3)"
CACHE = 'return "cache" if from_cache else "no wait"'
PULLED_UP = "if record.says_us > 1.2 * usual:"
COMPILE = 'return "compile" if record.repeats_us[0] == max(record.repeats_us) else "outlier"'
RIGHT = {
    "(card.memory_gb_s * 1e3)": "(card.memory_gb_s * 10**9) * 10**6",
    "median(record.repeats_us)": "sorted(record.repeats_us)[len(record.repeats_us) // 2]",
}
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
}
