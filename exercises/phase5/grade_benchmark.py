"""Grader of exercise 5.4: what is wrong with a benchmark, by its floor."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from exercises.grading import NotYet, guard, show
from exercises.judging.judge import When
from exercises.judging.solutions import Solution
from exercises.phase5.benchmark_records import CARD, WORDS, Card, Record, make_record

TOO_FAST = ("cache", "no wait", "no wait, small")
PULLED_UP = ("compile", "outlier", "prefill")
KINDS = ("nothing", "slow", "no wait", "cache", "compile", "outlier", "prefill", "bytes", "small", "launch", "no wait, small",
         "first left out", "outlier left out", "prefill left out")  # fmt: skip
ODD_CARD = Card(memory_gb_s=3350.0, cache_mb=60.0, cache_gb_s=9000.0)


KV_HEADS, NUMBERS = "record.num_kv_heads", "2 * record.requests * record.context_len"
GB_S = "(card.memory_gb_s * 1e3)"
FLOOR = f"numbers * record.itemsize / {GB_S}"
EXERCISE = Solution(
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
    what_is_wrong={},
)


def _is_power_of_ten(x: float) -> bool:
    return x > 0 and abs(math.log10(x) - round(math.log10(x))) < 1e-4


@EXERCISE.grader
def grade_benchmark(
    floor_us: Callable[[Record, Card], float], what_is_wrong: Callable[[Record, Card], str]
) -> None:
    _floors(floor_us)
    for seed in range(24):
        card = CARD if seed < 12 else ODD_CARD
        for kind in KINDS:
            record, word = make_record(kind, seed, card)
            _ask(what_is_wrong, record, card, kind, word)


def _floors(floor_us: Callable[[Record, Card], float]) -> None:
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


def _ask(
    what_is_wrong: Callable[[Record, Card], Any], record: Record, card: Card, kind: str, word: str
) -> None:
    floor = EXERCISE.answers["floor_us"](record, card)
    limits = (
        f"reads {card.memory_gb_s:,.0f} GB/s, L2 cache {card.cache_mb:.0f} MB and {card.cache_gb_s:,.0f} GB/s"
    )
    tried = f"{record}\n  (the card {limits}; the floor is {floor:,.2f} us)"
    got = guard(what_is_wrong, record, card, tried=tried)
    if got == word:
        return
    if got is None:
        says = "For this record the result is None. Does each branch end with `return`?"
        raise NotYet("returns-nothing", says, tried, "None", repr(word))
    if got not in WORDS:
        says = "The answer is one of the words in the table."
        raise NotYet("not-one-of-the-words", says, tried, show(got), " or ".join(map(repr, WORDS)))
    diagnosis = diagnosis_of(kind, got)
    if card != CARD:  # all records of CARD were answered rightly: is it the card that is not looked at?
        elsewhere = guard(what_is_wrong, make_record(kind, 0)[0], card, tried=tried)
        if guard(what_is_wrong, record, CARD, tried=tried) == got and elsewhere == make_record(kind, 0)[1]:
            diagnosis = "card-built-in"
    raise EXERCISE.says().no(diagnosis, tried, repr(got), repr(word))


def diagnosis_of(kind: str, got: str) -> str:
    """What a wrong answer to a record of this kind is called."""
    if kind in ("small", "launch") and got == "cache":
        return "fits-is-not-enough"
    if kind in ("slow", "launch"):
        return "slow-is-no-lie"
    if kind in TOO_FAST:
        if kind == "cache" and got == "no wait":
            return "cache-taken-for-no-wait"
        return "no-wait-taken-for-cache" if got == "cache" else "too-fast-not-seen"
    if kind in PULLED_UP:
        if got == "bytes":
            return "bytes-taken-for-the-mean"
        if kind == "prefill" and got in PULLED_UP:
            return "prefill-taken-for-something-else"
        if got in PULLED_UP:
            return "compile-taken-for-outlier" if kind == "compile" else "outlier-taken-for-compile"
        return "mean-not-seen"
    if kind.endswith("left out") and got in PULLED_UP:
        return "left-out-does-no-harm"
    if kind == "bytes":
        return "bytes-not-checked" if got == "nothing" else "believes-the-author"
    return "honest-called-a-liar"
