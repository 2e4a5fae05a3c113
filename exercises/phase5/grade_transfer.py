"""Grader of exercise 5.6: blocks read from a side that may die, under a lease that may end."""

import random
from collections.abc import Callable
from typing import Any

from exercises.judging.judge import Raised, When
from exercises.judging.solutions import Solution
from exercises.phase5.other_side import OtherSide

FOREVER = 1000.0
Pairs = list[tuple[int, int]]
THREE, FOUR = [(7, 1), (8, 2), (3, 4)], [(7, 1), (8, 2), (3, 4), (9, 6)]
BY_HAND = [  # pairs, how many are cached, when the lease ends, after how many reads the other side dies
    (THREE, 0, FOREVER, None),
    (THREE, 1, FOREVER, None),
    (FOUR, 0, FOREVER, 2),
    (THREE, 0, 2.0, None),
    (THREE, 1, 2.0, None),
    (THREE, 0, FOREVER, 3),  # everything was read, and `done` finds it dead
    (THREE, 3, FOREVER, None),
]

READ = "            cache[own] = other.read(theirs)\n"
LATE = "            if other.clock() >= other.lease_until:\n                return good\n"
BEHIND, LEFT = "        other.done()\n", "min(num_good * block_size, num_tokens - 1)"
EXERCISE = Solution(
    "p5e6_block_transfer",
    load_blocks={
        "crash-not-caught": (
            {"except ConnectionError": "except KeyError"},
            When(lambda got, *_: isinstance(got, Raised) and got.kind is ConnectionError),
        ),
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
    },
    num_computed={
        "nothing-left-to-compute": {"num_tokens - 1": "num_tokens"},
        "more-than-there-are": {LEFT: "num_good * block_size"},
        "a-whole-block-again": {
            LEFT: "num_good * block_size if num_good * block_size < num_tokens else (num_good - 1) * block_size"
        },
        "one-less-always": {LEFT: "max(0, min(num_good * block_size, num_tokens) - 1)"},
    },
)


def _num_good(pairs: Pairs, num_cached: int, lease_until: float, dies_after: int | None) -> int:
    wanted = len(pairs) - num_cached
    in_time = sum(second < lease_until for second in range(1, wanted + 1))
    return num_cached + min(in_time, wanted if dies_after is None else dies_after)


def transferred(load_blocks: Callable[..., int]) -> Callable[..., dict[str, Any]]:
    """How many blocks are good, what is in them, and what was asked of the other side."""

    def play(pairs: Pairs, num_cached: int, lease_until: float, dies_after: int | None) -> dict[str, Any]:
        other = OtherSide({theirs: f"content {theirs}" for theirs, _ in pairs}, lease_until, dies_after)
        cache = {own: f"content {theirs}" for theirs, own in pairs[:num_cached]}
        good = load_blocks(other, pairs, num_cached, cache)
        cached = [theirs for theirs, _ in pairs[:num_cached] if ("read", theirs) in other.log]
        undisturbed = lease_until == FOREVER and dies_after is None
        right = _num_good(pairs, num_cached, lease_until, dies_after)
        return {
            "good": good,
            "cached blocks read again": cached,
            "contents": [cache.get(own, "nothing") for _, own in pairs[:right]],
            "said done": not undisturbed or (other.log.count(("done",)) > 0 and other.log[-1] == ("done",)),
        }

    return play


@EXERCISE.grader
def grade_transfer(load_blocks: Callable[..., int], num_computed: Callable[..., int]) -> None:
    rng, cases = random.Random(3), list(BY_HAND)
    for _ in range(60):
        n = rng.randint(1, 8)
        pairs = list(zip(rng.sample(range(1, 40), n), rng.sample(range(1, 40), n), strict=True))
        num_cached = rng.choice([0, 0, rng.randint(0, n)])
        lease = rng.choice([FOREVER, rng.randint(1, 8) + rng.choice([0.0, 0.5])])
        cases.append((pairs, num_cached, lease, rng.choice([None, None, rng.randint(0, n - num_cached)])))
    EXERCISE.judge("load_blocks", load_blocks, cases, play=transferred)
    sizes = [(2, 4, 11), (0, 4, 11), (3, 4, 12), (3, 4, 11), (1, 16, 16), (1, 16, 3), (5, 8, 200), (1, 1, 1)]
    EXERCISE.judge("num_computed", num_computed, sizes)
