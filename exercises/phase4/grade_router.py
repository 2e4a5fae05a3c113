"""Grader of exercise 4.10: a router that finds the prefix."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from exercises.grading import NotYet
from exercises.judging.solutions import Solution

Asked = Sequence[tuple[list[int], list[int]]]  # (blocks, loads) of each request

DROWNS, TOO_LITTLE = "loads[chosen] > min(loads) + self.slack", "known[chosen] * 2 < len(blocks)"
LEAST, WRITTEN = "loads.index(min(loads))", "self.given[chosen].update(blocks)"
EXERCISE = Solution(
    "p4e10_router",
    Router={
        "never-looks": {f"{TOO_LITTLE} or drowns": "True"},
        "drowns": {" or drowns": ""},
        "any-beginning-will-do": {TOO_LITTLE: "known[chosen] == 0"},
        "more-than-half": {TOO_LITTLE: "known[chosen] * 2 <= len(blocks)"},
        "slack-counts-as-drowning": {DROWNS: "loads[chosen] >= min(loads) + self.slack"},
        "looks-at-the-highest": {DROWNS: "max(loads) > min(loads) + self.slack"},
        "first-owner-only": {WRITTEN: "self.given[chosen].update(set(blocks).difference(*self.given))"},
        "forgets-the-overflow": {
            f"{DROWNS}\n": f"{DROWNS}\n        if drowns:\n            return {LEAST}\n"
        },
        "writes-down-the-best": {
            f"chosen = {LEAST}\n        {WRITTEN}": f"{WRITTEN}\n            return {LEAST}\n        {WRITTEN}"
        },
        "first-among-equals": {"(-known[replica], loads[replica])": "-known[replica]"},
        "not-from-the-beginning": {"return i\n": "return len(self.given[replica].intersection(blocks))\n"},
    },
)


def _asked(rng: random.Random, num_replicas: int) -> Asked:
    """Talks that come back, all with the same first block, and now and then a text that only ends like another."""
    talks, name, asked = [[0, 1]], 2, []
    for _ in range(rng.randint(3, 8)):
        talk = list(rng.choice(talks))[: rng.choice((1, 9, 9, 9))]
        more = rng.choice((0, 1, 1, 2, 4))
        talk += range(name, name + more)
        name += more
        talks.append(talk)
        if rng.random() < 0.15:
            talk = [name, *talk[1:]]
            name += 1
        asked.append((talk, [rng.choice((0, 1, 2, 3, 5, 9)) for _ in range(num_replicas)]))
    return asked


def routed(router_class: type) -> Callable[[int, int, Asked], list[int]]:
    """The choices for all requests, one after the other."""

    def play(num_replicas: int, slack: int, asked: Asked) -> list[Any]:
        router = router_class(num_replicas, slack)
        return [router.choose(blocks, loads) for blocks, loads in asked]

    return play


def _numbers(result: list[Any]) -> list[Any]:
    if None in result:
        raise NotYet("returns-nothing", "choose returned None. Is a `return` missing?")
    return result


@EXERCISE.grader
def grade_router(router: type) -> None:
    by_hand = [
        ([1, 2, 3], [1, 0, 0]),
        ([1, 2, 3, 4], [0, 3, 0]),
        ([1, 8, 9], [0, 3, 0]),
        ([1, 2, 3, 4], [0, 5, 1]),
        ([1, 2, 3, 4], [2, 5, 0]),
    ]
    cases: list[tuple[int, int, Asked]] = [
        *[(3, 4, by_hand[:n]) for n in range(1, 6)],
        (2, 4, [([1, 2], [0, 0]), ([1, 2], [4, 0])]),
        (2, 4, [([1], [0, 0]), ([1, 2], [1, 0])]),
        (3, 2, [([1, 2], [0, 0, 0]), ([1, 2], [1, 9, 0])]),
        (2, 4, [([1, 2, 3], [0, 0]), ([7, 2, 3], [1, 0])]),
    ]
    rng = random.Random(10)
    for _ in range(150):
        num_replicas = rng.randint(2, 4)
        cases.append((num_replicas, rng.choice((0, 2, 4)), _asked(rng, num_replicas)))

    EXERCISE.judge("Router", router, cases, play=routed, clean=_numbers)
