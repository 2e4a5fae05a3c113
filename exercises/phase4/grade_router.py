"""Grader of exercise 4.10: a router that finds the prefix."""

import random
from collections.abc import Sequence
from typing import Any

from exercises.grading import Diagnoses, Exercise, NotYet, guard, show
from exercises.judging.judge import judge
from exercises.judging.slips import slips
from exercises.phase4.small_requests import BY_HAND

SAYS = Diagnoses.of("p4e10_router")
Asked = Sequence[tuple[list[int], list[int]]]  # (blocks, loads) of each request


def _choices(num_replicas: int, slack: int, asked: Asked) -> list[int]:
    given: list[set[int]] = [set() for _ in range(num_replicas)]
    chosen = []
    for blocks, loads in asked:
        known = [[*(block in mine for block in blocks), False].index(False) for mine in given]
        best = min(range(num_replicas), key=lambda replica: (-known[replica], loads[replica]))
        drowns = loads[best] - min(loads) > slack
        too_little = known[best] * 2 < len(blocks)
        replica = loads.index(min(loads)) if drowns or too_little else best
        given[replica].update(blocks)
        chosen.append(replica)
    return chosen


KNOWN, GIVEN = "[*(block in mine for block in blocks), False].index(False)", "given[replica].update(blocks)"
MISTAKES = {
    "never-looks": {"drowns or too_little": "True"},
    "drowns": {"drowns or too_little": "too_little"},
    "any-beginning-will-do": {"known[best] * 2 < len(blocks)": "known[best] == 0"},
    "more-than-half": {"known[best] * 2 <": "known[best] * 2 <="},
    "slack-counts-as-drowning": {"> slack": ">= slack"},
    "looks-at-the-highest": {"loads[best] - min(loads)": "max(loads) - min(loads)"},
    "first-owner-only": {GIVEN: "given[replica].update(set(blocks).difference(*given))"},
    "forgets-the-overflow": {GIVEN: f"drowns or {GIVEN}"},
    "writes-down-the-best": {GIVEN: "given[best].update(blocks)"},
    "first-among-equals": {"(-known[replica], loads[replica])": "-known[replica]"},
    "not-from-the-beginning": {KNOWN: "sum(block in mine for block in blocks)"},
}


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


def grade_router(Router: type) -> str:
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

    def routed(num_replicas: int, slack: int, asked: Asked) -> list[Any]:
        router = guard(Router, num_replicas, slack)
        return [guard(router.choose, blocks, loads) for blocks, loads in asked]

    def numbers(result: list[Any]) -> list[int]:
        for replica in result:
            if replica is None:
                raise NotYet("returns-nothing", "choose came back with None. Is a `return` missing?")
            if isinstance(replica, bool) or not hasattr(replica, "__index__"):
                says = f"choose gives the number of a replica, and {show(replica, 60)} came back."
                raise NotYet("wrong-type", says)
        return [int(replica) for replica in result]

    def in_words(num_replicas: int, slack: int, asked: Asked) -> str:
        calls = "; ".join(f"choose({blocks}, {loads})" for blocks, loads in asked)
        return f"Router({num_replicas}, {slack}): {calls}"

    judge(
        routed,
        cases,
        _choices,
        slips(_choices, MISTAKES),
        SAYS,
        show=in_words,
        clean=numbers,
        otherwise=BY_HAND,
    )
    return f"{len(cases)} fleets of two to four replicas, with talks that come back and replicas that drown."


EXERCISES = [
    Exercise("p4e10_router", ("Router",), grade_router),
]
