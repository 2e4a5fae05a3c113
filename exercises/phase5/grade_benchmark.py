"""Grader of exercise 5.4: what is wrong with a benchmark, by its floor."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from exercises.grading import NotYet, guard, show
from exercises.judging.judge import judge
from exercises.phase5.benchmark_records import CARD, WORDS, Card, Record, kv_bytes, make_record

FLOOR_SAYS = {
    "floor-counts-query-heads": "You count keys and values for every query head. Query heads share: how many heads have keys of their own?",
    "floor-forgets-values": "The floor is half of what it should be. A step reads keys, and it reads something else as well.",
    "floor-of-one-request": "This is the floor of a single request. A step reads the keys and values of all of them.",
    "floor-forgets-itemsize": "You count numbers. Memory delivers bytes.",
    "floor-of-the-new-token": "You count what is written for one new token. A step reads the keys and values of all tokens before it.",
    "floor-of-the-cache": "This is how fast the L2 cache would be. The floor is that of the main memory.",
    "floor-by-the-author": "The floor depends on what the author measured or says. It is a matter of the shape and the card alone.",
    "floor-upside-down": "This is bandwidth divided by bytes. Time is bytes divided by bandwidth.",
    "floor-units": "Off by a power of ten: 1 GB/s is 10^9 bytes in 10^6 microseconds.",
}  # fmt: skip

TOO_FAST = ("cache", "no wait", "no wait, small")
PULLED_UP = ("compile", "outlier", "prefill")
SAYS = {
    "slow-is-no-lie": "This one is slow, many times above its floor, and measured well. What the author says is true.",
    "fits-is-not-enough": "It would fit into the cache, but was it faster than main memory allows? Only then did it come from there.",
    "cache-taken-for-no-wait": "Too fast for the main memory, that is right. But could the keys and values have come from the cache? Do they fit, and "
    "is it fast enough?",
    "no-wait-taken-for-cache": "Too fast for the main memory, that is right. But the cache could not have done it, either: compare with its size and "
    "its own bandwidth.",
    "too-fast-not-seen": "The median of the repeats is far below the floor. That much cannot have been read from the main memory in that time.",
    "compile-taken-for-outlier": "The slow repeat is the very first one. What happens in the first call and in no other?",
    "outlier-taken-for-compile": "One repeat is slow, and it is not the first. Compiling happens in the first.",
    "prefill-taken-for-something-else": "The slow repeats computed more tokens than one for each request: look at new_tokens.",
    "mean-not-seen": "What the author says is several times the median of the repeats. Something pulled a mean up.",
    "left-out-does-no-harm": "Some repeats went wrong, but the author's figure is the median, and they did no harm to it.",
    "believes-the-author": "The time is possible; only the GB/s of the author are not right. Work out from the shape how many bytes were read, and do not "
    "take them from what the author says.",
    "bytes-not-checked": "The GB/s do not belong to these microseconds: so many bytes were not read in that time.",
    "bytes-taken-for-the-mean": "The author's GB/s belong to the author's microseconds. It is these that are wrong.",
    "card-built-in": "On the first card all was right, and this one is another: its limits are ignored. Take bandwidth and size of the cache from `card`.",
    "honest-called-a-liar": "Nothing is wrong with this one. Honest figures wobble a little, and no kernel reaches the floor entirely.",
}  # fmt: skip
KINDS = ("nothing", "slow", "no wait", "cache", "compile", "outlier", "prefill", "bytes", "small", "launch", "no wait, small",
         "first left out", "outlier left out", "prefill left out")  # fmt: skip
ODD_CARD = Card(memory_gb_s=3350.0, cache_mb=60.0, cache_gb_s=9000.0)


def right_floor(record: Record, card: Card) -> float:
    return kv_bytes(_shape(record)) / card.memory_gb_s / 1e3


def _shape(r: Record) -> tuple[int, ...]:
    return r.requests, r.context_len, r.num_heads, r.num_kv_heads, r.head_dim, r.itemsize


def wrong_floors(r: Record, card: Card) -> dict[str, list[float]]:
    """What each mistake gives."""
    right = right_floor(r, card)
    return {
        "floor-counts-query-heads": [right * r.num_heads / r.num_kv_heads],
        "floor-forgets-values": [right / 2],
        "floor-of-one-request": [right / r.requests],
        "floor-forgets-itemsize": [right / r.itemsize],
        "floor-of-the-new-token": [right / r.context_len],
        "floor-of-the-cache": [right * card.memory_gb_s / card.cache_gb_s],
        "floor-by-the-author": [right * card.memory_gb_s / r.says_gb_s, r.says_us, min(r.repeats_us)],
        "floor-upside-down": [10.0**n / right for n in range(-6, 10)],
        "floor-units": [right * 10.0**n for n in range(-12, 13) if n],
    }


def grade_benchmark(
    floor_us: Callable[[Record, Card], float], what_is_wrong: Callable[[Record, Card], str]
) -> str:
    _floors(floor_us)
    count = 0
    for seed in range(24):
        card = CARD if seed < 12 else ODD_CARD
        for kind in KINDS:
            record, word = make_record(kind, seed, card)
            _ask(what_is_wrong, record, card, kind, word)
            count += 1
    return (
        f"The floors of 6 shapes on two cards; {count} records of the two, of which {count // 2} are honest."
    )


def _floors(floor_us: Callable[[Record, Card], float]) -> None:
    kinds = ("bytes", "slow", "cache", "nothing", "launch")
    records = [make_record(kind, seed)[0] for seed, kind in enumerate(kinds)]
    shape = dict(requests=3, context_len=700, num_heads=28, num_kv_heads=4, head_dim=96, itemsize=4)
    tries = [(r, card) for card in (CARD, ODD_CARD) for r in [replace(records[0], **shape), *records]]
    ways = {
        mistake: tuple(lambda r, card, m=mistake, i=i: wrong_floors(r, card)[m][i] for i in range(len(known)))
        for mistake, known in wrong_floors(*tries[0]).items()
    }
    judge(
        floor_us,
        tries,
        right_floor,
        ways,
        FLOOR_SAYS,
        show=lambda r, card: f"floor_us of {_size(r)}; memory reads {card.memory_gb_s:,.0f} GB/s",
        tolerance=1e-3,
        clean=as_microseconds,
        present=lambda got, want: (f"{got:,.6g} us", f"{want:,.6g} us"),
        otherwise="This is not bytes divided by bandwidth.",
    )


def as_microseconds(result: Any) -> float:
    try:
        return float(result)
    except (TypeError, ValueError):
        raise NotYet("wrong-type", "A number of microseconds is asked for.", got=show(result)) from None


def _size(r: Record) -> str:
    return (
        f"{r.requests} requests x {r.context_len:,} tokens, {r.num_heads} query heads, {r.num_kv_heads} KV heads, head_dim {r.head_dim}, "
        f"{r.itemsize} byte{'s' * (r.itemsize > 1)} a number"
    )


def _ask(
    what_is_wrong: Callable[[Record, Card], Any], record: Record, card: Card, kind: str, word: str
) -> None:
    floor = right_floor(record, card)
    limits = (
        f"reads {card.memory_gb_s:,.0f} GB/s, L2 cache {card.cache_mb:.0f} MB and {card.cache_gb_s:,.0f} GB/s"
    )
    tried = f"{record}\n  (the card {limits}; the floor is {floor:,.2f} us)"
    got = guard(what_is_wrong, record, card, tried=tried)
    if got == word:
        return
    if got is None:
        says = "For this record None came back. Is there a way through without `return`?"
        raise NotYet("returns-nothing", says, tried, "None", repr(word))
    if got not in WORDS:
        says = "The answer is one of the words in the table."
        raise NotYet("not-one-of-the-words", says, tried, show(got), " or ".join(map(repr, WORDS)))
    diagnosis = diagnosis_of(kind, got)
    if card != CARD:  # all records of CARD were answered rightly: is it the card that is not looked at?
        elsewhere = guard(what_is_wrong, make_record(kind, 0)[0], card, tried=tried)
        if guard(what_is_wrong, record, CARD, tried=tried) == got and elsewhere == make_record(kind, 0)[1]:
            diagnosis = "card-built-in"
    raise NotYet(diagnosis, SAYS[diagnosis], tried, repr(got), repr(word))


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
