"""Answers to exercise 5.4 that learners give."""

from dataclasses import replace
from statistics import mean, median

from exercises.phase5.benchmark_records import Card


def floor(record, card):
    size = 2 * record.requests * record.context_len * record.num_kv_heads * record.head_dim * record.itemsize
    return size / card.memory_gb_s / 1000


def judge(record, card):
    """Right: as in the solution, put together differently."""
    low, usual, says = (
        floor(record, card),
        sorted(record.repeats_us)[len(record.repeats_us) // 2],
        record.says_us,
    )
    if usual < low / 1.2:
        in_cache = low * card.memory_gb_s / 1000 <= card.cache_mb  # GB/s x us / 1000 = MB
        return "cache" if in_cache and usual >= 0.7 * low * card.memory_gb_s / card.cache_gb_s else "no wait"
    if says / usual >= 1.5:
        if any(n != record.requests for n in record.new_tokens):
            return "prefill"
        return "compile" if record.repeats_us[0] > 3 * usual else "outlier"
    bytes_said, bytes_read = record.says_gb_s * says, low * card.memory_gb_s
    return "bytes" if not 0.67 < bytes_said / bytes_read < 1.5 else "nothing"


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


# ---------------------------------------------------------------------- verdicts


def instead(words):
    """Says another word in place of some: what they stand for is not looked at."""
    return lambda record, card: words.get(word := judge(record, card), word)


def fits_then_cache(record, card):
    """Below the floor and fits: cache. How fast the cache is was not asked."""
    if median(record.repeats_us) < 0.9 * floor(record, card):
        return "cache" if floor(record, card) * card.memory_gb_s * 1e3 <= card.cache_mb * 1e6 else "no wait"
    return judge(record, card)


def fits_means_cache(record, card):
    if floor(record, card) * card.memory_gb_s * 1e3 <= card.cache_mb * 1e6:
        return "cache"
    return judge(record, card)


def by_the_gb_s(record, card):
    """Asks the author: more GB/s than the card has."""
    if record.says_gb_s > card.cache_gb_s:
        return "no wait"
    if record.says_gb_s > card.memory_gb_s:
        return "cache"
    return judge(record, card)


def repeats_alone(record, card):
    """Looks at the repeats, and not at what is said."""
    usual = median(record.repeats_us)
    if usual >= 0.9 * floor(record, card) and max(record.repeats_us) > 3 * usual:
        if max(record.new_tokens) > record.requests:
            return "prefill"
        return "compile" if record.repeats_us[0] > 3 * usual else "outlier"
    return judge(record, card)


def bytes_by_the_median(record, card):
    """GB/s beside the median, before anything else."""
    true = floor(record, card) * card.memory_gb_s / median(record.repeats_us)
    return "bytes" if not 0.8 < record.says_gb_s / true < 1.25 else judge(record, card)


RIGHT = [(floor, judge), (floor_in_seconds, judge_from_the_other_end)]
WRONG = {
    "floor-counts-query-heads": (
        lambda record, card: floor(record, card) * record.num_heads / record.num_kv_heads,
        judge,
    ),
    "floor-forgets-values": (lambda record, card: floor(record, card) / 2, judge),
    "floor-of-one-request": (lambda record, card: floor(record, card) / record.requests, judge),
    "floor-forgets-itemsize": (lambda record, card: floor(record, card) / record.itemsize, judge),
    "floor-of-the-new-token": (lambda record, card: floor(record, card) / record.context_len, judge),
    "floor-of-the-cache": (
        lambda record, card: floor(record, card) * card.memory_gb_s / card.cache_gb_s,
        judge,
    ),
    "floor-units": (lambda record, card: floor(record, card) / 1000, judge),
    "floor-upside-down": (
        lambda record, card: card.memory_gb_s * 1e3 / (floor(record, card) * card.memory_gb_s * 1e3),
        judge,
    ),
    "floor-by-the-author": (
        lambda record, card: floor(record, card) * card.memory_gb_s / record.says_gb_s,
        judge,
    ),
    "cache-taken-for-no-wait": (floor, instead({"cache": "no wait"})),
    "no-wait-taken-for-cache": (floor, fits_then_cache),
    "fits-is-not-enough": (floor, fits_means_cache),
    "slow-is-no-lie": (
        floor,
        lambda record, card: (
            "no wait" if median(record.repeats_us) > 4 * floor(record, card) else judge(record, card)
        ),
    ),
    "believes-the-author": (floor, by_the_gb_s),
    "bytes-not-checked": (floor, instead({"bytes": "nothing"})),
    "left-out-does-no-harm": (floor, repeats_alone),
    "prefill-taken-for-something-else": (floor, instead({"prefill": "outlier"})),
    "compile-taken-for-outlier": (floor, instead({"compile": "outlier"})),
    "outlier-taken-for-compile": (floor, instead({"outlier": "compile"})),
    "mean-not-seen": (floor, instead(dict.fromkeys(("compile", "outlier", "prefill"), "nothing"))),
    "bytes-taken-for-the-mean": (floor, bytes_by_the_median),
    "too-fast-not-seen": (floor, instead(dict.fromkeys(("cache", "no wait"), "nothing"))),
    "not-one-of-the-words": (floor, instead({"no wait": "missing synchronise"})),
    # Wants to see 95% of the floor.
    "honest-called-a-liar": (
        floor,
        lambda record, card: (
            "no wait"
            if judge(record, card) == "nothing" and floor(record, card) / record.says_us < 0.95
            else judge(record, card)
        ),
    ),
    "card-built-in": [
        (floor, lambda record, card: judge(record, Card())),
        (floor, lambda record, card: judge(record, replace(card, cache_mb=50.0))),
    ],
}
