"""Benchmark records for exercise 5.4: what a clock would have shown on a card that exists only here.

A record is what the author of a benchmark of decode attention hands in: the shape, every repeat, and what the
author says. The card is simulated, so what is wrong with a record is known.
"""

import random
from dataclasses import dataclass
from statistics import mean, median


@dataclass(frozen=True)
class Card:
    """The limits of a card.

    Attributes:
        memory_gb_s: bandwidth of its main memory; 1 GB is 10^9 bytes.
        cache_mb: size of its L2 cache; 1 MB is 10^6 bytes.
        cache_gb_s: bandwidth of the L2 cache.
    """

    memory_gb_s: float = 2000.0
    cache_mb: float = 50.0
    cache_gb_s: float = 6000.0


@dataclass(frozen=True)
class Record:
    """One benchmark of decode attention, one layer: each request has one new token and reads all its keys and values.

    Attributes:
        requests: number of requests in a step. context_len: tokens of each.
        num_heads, num_kv_heads, head_dim: of the model. itemsize: bytes of a number.
        repeats_us: microseconds of every repeat, in order.
        new_tokens: tokens that each repeat computed; a repeat of decode alone computes one for each request.
        says_us, says_gb_s: the author's figures: microseconds of a step, gigabytes per second.
    """

    requests: int
    context_len: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    itemsize: int
    repeats_us: tuple[float, ...]
    new_tokens: tuple[int, ...]
    says_us: float
    says_gb_s: float

    @property
    def shape(self) -> str:
        return (
            f"{self.requests} requests x {self.context_len:,} tokens, {self.num_heads} query heads, {self.num_kv_heads} KV heads, "
            f"head_dim {self.head_dim}, {self.itemsize} byte{'s' * (self.itemsize > 1)} per number"
        )

    def __str__(self) -> str:
        first = ", ".join(f"{us:,.1f}" for us in self.repeats_us[:9])
        tokens = ", ".join(map(str, self.new_tokens[:9]))
        return (
            f"{self.shape}\n"
            f"  repeats, us   {first}, ... ({len(self.repeats_us)})\n"
            f"  new tokens    {tokens}, ...\n"
            f"  the author says: {self.says_us:,.1f} us, {self.says_gb_s:,.0f} GB/s"
        )


CARD = Card()
WORDS = ("nothing", "no wait", "cache", "compile", "outlier", "prefill", "bytes")
LAUNCH_US, REPEATS = 5.0, 20
LARGE = (
    (64, 4096, 32, 8, 128, 2),
    (32, 2048, 32, 32, 128, 2),
    (16, 8192, 64, 8, 128, 2),
    (128, 2048, 40, 8, 128, 1),
)
# They fit into the cache.
SMALL = ((4, 1024, 32, 8, 128, 2), (8, 512, 16, 4, 128, 2), (1, 2048, 32, 8, 128, 4))


def kv_bytes(shape: tuple[int, ...]) -> int:
    """Bytes of all keys and values that a step reads."""
    requests, context_len, _, num_kv_heads, head_dim, itemsize = shape
    return 2 * requests * context_len * num_kv_heads * head_dim * itemsize


def make_record(kind: str, seed: int, card: Card = CARD) -> tuple[Record, str]:
    """(a record of this kind, what is wrong with it in one of WORDS).

    Kinds beyond WORDS: "no wait, small" fits into the cache; honest are "slow", "small", "launch", "first left out",
    "outlier left out" and "prefill left out". `card` is the one that it was measured on.
    """
    rng = random.Random(f"{kind} {seed}")
    shape = rng.choice(SMALL if kind in ("cache", "small") else LARGE)
    if kind == "cache" and card.cache_mb > CARD.cache_mb and seed % 2:
        shape = (8, 1700, 32, 8, 128, 2)  # 55.7 MB: too large for the cache of CARD
    # Of the second the keys and values nearly fill the cache.
    shape = {"launch": (1, 64, 32, 8, 128, 2), "no wait, small": (8, 1464, 32, 8, 128, 2)}.get(kind, shape)
    requests, size = shape[0], kv_bytes(shape)
    floor_us, from_cache_us = (size / gb_s / 1e3 for gb_s in (card.memory_gb_s, card.cache_gb_s))
    usual = {
        "slow": floor_us / rng.uniform(0.02, 0.2),
        "no wait": LAUNCH_US * rng.uniform(0.9, 1.3),
        "no wait, small": rng.uniform(2.0, 3.0),
        "cache": from_cache_us / rng.uniform(0.75, 0.95),
        "launch": LAUNCH_US * rng.uniform(1.0, 1.2),
    }.get(kind, floor_us / rng.uniform(0.55, 0.9))
    repeats = [usual * rng.uniform(0.97, 1.03) for _ in range(REPEATS)]
    tokens = [requests] * REPEATS
    if kind in ("compile", "first left out"):
        repeats[0] = usual * REPEATS * rng.uniform(3, 30)
    elif kind in ("outlier", "outlier left out"):
        repeats[rng.randrange(3, REPEATS)] = usual * REPEATS * rng.uniform(3, 8)
    elif kind in ("prefill", "prefill left out"):
        for i in rng.sample(range(2, REPEATS), 4):
            tokens[i] = requests + 512 * rng.randint(1, 4)
            repeats[i] = usual * rng.uniform(15, 30)
    repeats = [round(us, 2) for us in repeats]
    says_us = mean(repeats) if kind in ("compile", "outlier", "prefill") else median(repeats)
    says_gb_s = size / says_us / 1e3
    if kind == "bytes":  # as if every query head had keys of its own; the keys alone; 4 bytes a number
        heads_too_many = shape[2] / shape[3]
        wrong = ([heads_too_many] if heads_too_many > 1 else []) + [4 / shape[5], 0.5]
        says_gb_s *= wrong[seed % len(wrong)]
    record = Record(*shape, tuple(repeats), tuple(tokens), round(says_us, 2), round(says_gb_s, 1))
    word = kind.removesuffix(", small")
    return record, word if word in WORDS else "nothing"
