"""Grader of exercise 4.10: a router that finds the prefix."""

import random
from collections.abc import Sequence
from typing import Any

from exercises.grading import Diagnoses, Exercise, NotYet, guard, show
from exercises.judging.judge import judge, variants
from exercises.phase4.visitors import BY_HAND

SAYS = Diagnoses.of("p4e10_router")
Asked = Sequence[tuple[list[int], list[int]]]  # (blocks, loads) of each request


class _Rule:
    """The rule, or the rule with a mistake."""

    def __init__(self, num_replicas: int, slack: int, mistake: str) -> None:
        self.slack, self.mistake = slack, mistake
        self.given: list[set[int]] = [set() for _ in range(num_replicas)]
        self.first: dict[int, int] = {}

    def choose(self, blocks: list[int], loads: list[int]) -> int:
        known = [self._known(blocks, replica) for replica in range(len(loads))]
        equals = [0] * len(loads) if self.mistake == "first-among-equals" else loads
        best = min(range(len(loads)), key=lambda replica: (-known[replica], equals[replica]))
        least = loads.index(min(loads))
        drowns = self._drowns(loads[best], loads)
        other = drowns or self._too_little(known[best], len(blocks)) or self.mistake == "never-looks"
        replica = least if other else best
        if not (drowns and self.mistake == "forgets-the-overflow"):
            self.given[best if self.mistake == "writes-down-the-best" else replica].update(blocks)
        for block in blocks:
            self.first.setdefault(block, replica)
        return replica

    def _known(self, blocks: list[int], replica: int) -> int:
        if self.mistake == "first-owner-only":
            mine = [self.first.get(block) == replica for block in blocks]
        else:
            mine = [block in self.given[replica] for block in blocks]
        if self.mistake == "not-from-the-beginning":
            return sum(mine)
        return (*mine, False).index(False)

    def _too_little(self, known: int, blocks: int) -> bool:
        if self.mistake == "any-beginning-will-do":
            return known == 0
        return known * 2 <= blocks if self.mistake == "more-than-half" else known * 2 < blocks

    def _drowns(self, load: int, loads: list[int]) -> bool:
        above = (max(loads) if self.mistake == "looks-at-the-highest" else load) - min(loads)
        if self.mistake == "slack-counts-as-drowning":
            return above >= self.slack
        return above > self.slack and self.mistake != "drowns"


def _choices(num_replicas: int, slack: int, asked: Asked, mistake: str = "") -> list[int]:
    rule = _Rule(num_replicas, slack, mistake)
    return [rule.choose(blocks, loads) for blocks, loads in asked]


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
        variants(_choices, SAYS),
        SAYS,
        show=in_words,
        clean=numbers,
        otherwise=BY_HAND,
    )
    return f"{len(cases)} fleets of two to four replicas, with talks that come back and replicas that drown."


EXERCISES = [
    Exercise("p4e10_router", ("Router",), grade_router),
]
