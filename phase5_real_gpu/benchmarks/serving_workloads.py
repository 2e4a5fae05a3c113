"""The workloads on which engines are timed. Token ids only and greedy, so that every engine does equal work.

No imports beyond the standard library: other engines run this in environments of their own.
"""

import random

VOCAB = 8000
MAX_NUM_SEQS = 64
Workload = list[tuple[list[int], int]]  # (prompt, number of tokens to write)


def equal(batch: int, isl: int = 20, osl: int = 50) -> Workload:
    """Short prompts of one length, arriving together: what static batches are good at."""
    return [([(7 * i + 13 * j) % VOCAB for j in range(isl)], osl) for i in range(batch)]


def mixed(count: int = 64, low: int = 16, high: int = 256) -> Workload:
    """Prompts and answers of any length between `low` and `high`: what people send."""
    rng = random.Random(1)
    return [
        ([rng.randint(1, VOCAB) for _ in range(rng.randint(low, high))], rng.randint(low, high))
        for _ in range(count)
    ]


def shared_prefix(count: int = 64, prefix: int = 256, tail: int = 16, osl: int = 32) -> Workload:
    """One system prompt, many users."""
    rng = random.Random(1)
    head = [rng.randint(1, VOCAB) for _ in range(prefix)]
    return [(head + [rng.randint(1, VOCAB) for _ in range(tail)], osl) for _ in range(count)]


WORKLOADS = {
    "batch1": lambda: equal(1),
    "batch4": lambda: equal(4),
    "batch16": lambda: equal(16),
    "batch64": lambda: equal(64),
    "mixed64": mixed,
    "prefix64": shared_prefix,
}
