"""Grader of exercise 5.4: what is wrong with a benchmark, by its floor."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from exercises.judging.comparing import show
from exercises.judging.judge import Exercise, When
from exercises.judging.verdict import NotYet
from exercises.phase5.benchmark_records import CARD, WORDS, Card, Record, make_record

TOO_FAST = ("cache", "no wait", "no wait, small")
PULLED_UP = ("compile", "outlier", "prefill")
LEFT_OUT = ("first left out", "outlier left out", "prefill left out")
KINDS = ("nothing", "slow", *TOO_FAST[:2], *PULLED_UP, "bytes", "small", "launch", TOO_FAST[2], *LEFT_OUT)
ODD_CARD = Card(memory_gb_s=3350.0, cache_mb=60.0, cache_gb_s=9000.0)


def _taken(*kinds: str, got: Sequence[str] = WORDS) -> When:
    """A record of these kinds that is taken for something else: for one of `got`."""
    return When(lambda word, want, record, card, kind: kind in kinds and word in got)


KV_HEADS, NUMBERS = "record.num_kv_heads", "2 * record.requests * record.context_len"
GB_S = "(card.memory_gb_s * 1e3)"
FLOOR = f"numbers * record.itemsize / {GB_S}"
EXERCISE = Exercise(
    "p5e4_lying_benchmark",
    floor_us={
        "floor-counts-query-heads": {KV_HEADS: "record.num_heads"},
        "floor-forgets-values": {NUMBERS: "record.requests * record.context_len"},
        "floor-of-one-request": {NUMBERS: "2 * record.context_len"},
        "floor-forgets-itemsize": {"numbers * record.itemsize": "numbers"},
        "floor-of-the-new-token": {NUMBERS: "2 * record.requests"},
        "floor-of-the-cache": {"card.memory_gb_s": "card.cache_gb_s"},
        "floor-by-the-author": (
            {FLOOR: "numbers * record.itemsize / (record.says_gb_s * 1e3)"},
            {FLOOR: "record.says_us"},
            {FLOOR: "min(record.repeats_us)"},
        ),
        "floor-upside-down": (
            {FLOOR: f"{GB_S} / (numbers * record.itemsize)"},
            When(lambda got, want, *_: _is_power_of_ten(got * want)),
        ),
        "floor-units": (
            {FLOOR: "numbers * record.itemsize / (card.memory_gb_s * 1e6)"},
            When(lambda got, want, *_: _is_power_of_ten(got / want)),
        ),
    },
    what_is_wrong={
        "card-built-in": (
            {"    floor, usual =": "    card = Card()\n    floor, usual ="},
            {"card.cache_mb * 1e6": "50e6"},
            When(lambda word, want, record, card, kind: card != CARD),  # after all records of CARD
        ),
        "fits-is-not-enough": _taken("small", "launch", got=("cache",)),
        "slow-is-no-lie": _taken("slow", "launch"),
        "cache-taken-for-no-wait": _taken("cache", got=("no wait",)),
        "no-wait-taken-for-cache": _taken("no wait", "no wait, small", got=("cache",)),
        "too-fast-not-seen": _taken(*TOO_FAST),
        "bytes-taken-for-the-mean": _taken(*PULLED_UP, got=("bytes",)),
        "prefill-taken-for-something-else": _taken("prefill", got=PULLED_UP),
        "compile-taken-for-outlier": _taken("compile", got=PULLED_UP),
        "outlier-taken-for-compile": _taken("outlier", got=PULLED_UP),
        "mean-not-seen": _taken(*PULLED_UP),
        "left-out-does-no-harm": _taken(*LEFT_OUT, got=PULLED_UP),
        "bytes-not-checked": _taken("bytes", got=("nothing",)),
        "believes-the-author": _taken("bytes"),
        "honest-called-a-liar": _taken("nothing", "slow", "small", "launch", *LEFT_OUT),
    },
)


def _is_power_of_ten(x: float) -> bool:
    return x > 0 and abs(math.log10(x) - round(math.log10(x))) < 1e-4


def _word(got: Any) -> Any:
    if got not in (None, *WORDS):
        says = "The answer is one of the words in the table."
        raise NotYet("not-one-of-the-words", says, got=show(got), expected=" or ".join(map(repr, WORDS)))
    return got


@EXERCISE.grader
def grade_benchmark(
    floor_us: Callable[[Record, Card], float], what_is_wrong: Callable[[Record, Card], str]
) -> None:
    kinds = ("bytes", "slow", "cache", "nothing", "launch")
    records = [make_record(kind, seed)[0] for seed, kind in enumerate(kinds)]
    shape = dict(requests=3, context_len=700, num_heads=28, num_kv_heads=4, head_dim=96, itemsize=4)
    EXERCISE.judge(
        "floor_us",
        floor_us,
        [(r, card) for card in (CARD, ODD_CARD) for r in [replace(records[0], **shape), *records]],
        show=lambda r, card: f"floor_us of {r.shape}; memory reads {card.memory_gb_s:,.0f} GB/s",
        tolerance=1e-3,
    )
    cards = {seed: CARD if seed < 12 else ODD_CARD for seed in range(24)}
    EXERCISE.judge(
        "what_is_wrong",
        what_is_wrong,
        [(make_record(kind, seed, card)[0], card, kind) for seed, card in cards.items() for kind in KINDS],
        play=lambda what_is_wrong, record, card, kind: what_is_wrong(record, card),
        show=_told,
        clean=_word,
    )


def _told(record: Record, card: Card, kind: str) -> str:
    floor = EXERCISE.answers["floor_us"](record, card)
    cache = f"L2 cache {card.cache_mb:.0f} MB and {card.cache_gb_s:,.0f} GB/s"
    limits = f"the card reads {card.memory_gb_s:,.0f} GB/s, {cache}; the floor is {floor:,.2f} us"
    return f"{record}\n  ({limits})"
