"""The attackers of `make fuzz`. Each tries case after case; a case is made from the seed and its number alone."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable

Attacker = Callable[[random.Random, Counter], Iterable[str]]


def attack(
    name: str,
    try_case: Attacker,
    seed: int,
    minutes: float | None = None,
    count: int | None = None,
    first: int = 0,
) -> list[str]:
    """Try the cases `first`, `first` + 1, ... until time is up, or `count` of them.

    Args:
        try_case: makes a case from its random numbers, counts what it did, and returns what did not hold.

    Returns:
        What did not hold, each with the words that repeat it.
    """
    until = time.monotonic() + 60 * (minutes or 1e9)
    counts: Counter[str] = Counter()
    findings, case = [], first
    while time.monotonic() < until and (count is None or case < first + count):
        found = try_case(random.Random(f"{seed} {case}"), counts)
        findings += [f"{name} --seed {seed} --case {case}: {what}" for what in found]
        case += 1
    told = "".join(f", {n:,} {what}" for what, n in sorted(counts.items()))
    print(f"{name}, seed {seed}: {case - first:,} cases{told}", flush=True)
    return findings
