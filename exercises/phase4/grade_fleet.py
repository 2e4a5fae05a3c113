"""Graders of exercises 4.9 and 4.10: Little's law and the saturation point, a router that finds the prefix."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from exercises.judging.judge import Exercise
from exercises.judging.verdict import NotYet

# ---------------------------------------------------------------------- 4.9 Little's law

INSIDE, SECONDS = "sum(done - arrival for arrival, done in requests)", "(end - begin)"
SEEN = "[sum(a <= time < e for a, e in requests) for time, _ in requests]"
STAY, KNEE = "tokens * (fixed + each * n)", "most / (tokens * (fixed + each * most))"
LITTLES_LAW = Exercise(
    "p4e9_littles_law",
    in_system={
        "clock-from-zero": {SECONDS: "end"},
        "run-by-the-list": {SECONDS: "(requests[-1][1] - requests[0][0])"},
        "run-ends-with-the-last-arrival": {"max(done for _, done": "max(done for done, _"},
        "mean-stay": {SECONDS: "len(requests)"},
        "sum-of-stays": {f" / {SECONDS}": ""},
        "rate-only": {INSIDE: "len(requests)"},
        "the-most-at-once": {f"{INSIDE} / {SECONDS}": f"max({SEEN})"},
        "as-arrivals-see-it": {f"{INSIDE} / {SECONDS}": f"sum({SEEN}) / len(requests)"},
    },
    running={
        "step-of-one": ({"each * n": "each"}, {" + each * n": ""}),
        "step-of-the-fullest": {"each * n": "each * most"},
        "weights-for-each": {STAY: "tokens * n * (fixed + each)"},
        "one-step-each": {STAY: "fixed + each * n"},
        "largest-that-suffices": {"range(1, most + 1)": "range(most, 0, -1)"},
        "over-the-cache": {"range(1, most + 1)": "range(1, 10_001)"},
        "exactly-is-too-few": {"n >= rate": "n > rate"},
        "one-too-few": {"return n\n": "return max(1, n - 1)\n"},
        "most-for-never": {"return 0": "return most"},
    },
    highest_rate={
        "step-of-one": ({"each * most": "each"}, {" + each * most": ""}),
        "weights-for-each": {KNEE: "most / (tokens * most * (fixed + each))"},
        "tokens-a-second": {KNEE: "most / (fixed + each * most)"},
        "one-request": {KNEE: "1 / (tokens * (fixed + each * most))"},
        "upside-down": {KNEE: "tokens * (fixed + each * most) / most"},
    },
)


@LITTLES_LAW.grader
def grade_littles_law(in_system: Callable, running: Callable, highest_rate: Callable) -> None:
    rng = random.Random(9)
    logs = [([(2.0, 6.0), (3.0, 4.0), (5.0, 7.0)],), ([(1.0, 3.0)],), ([(4.0, 5.0), (1.0, 9.0), (2.0, 3.0)],)]
    for _ in range(60):
        arrivals = [rng.uniform(1, 20) for _ in range(rng.randint(2, 8))]  # listed in no order
        logs.append(([(a, a + rng.expovariate(0.3) + 0.1) for a in arrivals],))
    LITTLES_LAW.judge("in_system", in_system, logs, tolerance=1e-6)
    servers = [(8, 0.25, 0.125, 4), (8, 0.25, 0.125, 8), (4, 0.5, 0.0, 3), (1, 1.0, 0.25, 6)]
    for _ in range(60):
        servers.append(
            (rng.randint(2, 200), rng.uniform(0.005, 0.05), rng.uniform(0, 0.004), rng.randint(1, 64))
        )
    # Rates of which some meet a number exactly: all of these are exact in binary.
    loads = [(rate, 8, 0.25, 0.125, 4) for rate in (0.5, 0.25, 1.0)] + [(1.5, 4, 0.5, 0.0, 3)]
    for server in servers[4:]:
        rate = LITTLES_LAW.answers["highest_rate"](*server) * rng.choice(
            (0.01, 0.3, 0.6, 0.9, 0.99, 1.01, 1.5)
        )
        loads.append((rate, *server))
    LITTLES_LAW.judge("running", running, loads)
    LITTLES_LAW.judge("highest_rate", highest_rate, servers, tolerance=1e-6)


# ---------------------------------------------------------------------- 4.10 a router

Asked = Sequence[tuple[list[int], list[int]]]  # (blocks, loads) of each request

OVERLOADED, TOO_LITTLE = "loads[chosen] > min(loads) + self.slack", "known[chosen] * 2 < len(blocks)"
LEAST, WRITTEN = "loads.index(min(loads))", "self.given[chosen].update(blocks)"
ROUTER = Exercise(
    "p4e10_router",
    Router={
        "never-looks": {f"{TOO_LITTLE} or overloaded": "True"},
        "overloads-one": {" or overloaded": ""},
        "any-beginning-will-do": {TOO_LITTLE: "known[chosen] == 0"},
        "more-than-half": {TOO_LITTLE: "known[chosen] * 2 <= len(blocks)"},
        "slack-counts-as-overload": {OVERLOADED: "loads[chosen] >= min(loads) + self.slack"},
        "overload-by-another-number": (
            {OVERLOADED: "loads[chosen] > self.slack"},
            {OVERLOADED: "loads[chosen] > sum(loads) / len(loads) + self.slack"},
        ),
        "takes-the-next-best": {
            "min(replicas,": "min((r for r in replicas if loads[r] <= min(loads) + self.slack),"
        },
        "looks-at-the-highest": {OVERLOADED: "max(loads) > min(loads) + self.slack"},
        "first-owner-only": {WRITTEN: "self.given[chosen].update(set(blocks).difference(*self.given))"},
        "forgets-the-overflow": {
            f"{OVERLOADED}\n": f"{OVERLOADED}\n        if overloaded:\n            return {LEAST}\n"
        },
        "writes-down-the-best": {
            f"chosen = {LEAST}\n        {WRITTEN}": f"{WRITTEN}\n            return {LEAST}\n        {WRITTEN}"
        },
        "first-among-equals": {"(-known[replica], loads[replica])": "-known[replica]"},
        "not-from-the-beginning": {"return i\n": "return len(self.given[replica].intersection(blocks))\n"},
    },
)


def _asked(rng: random.Random, num_replicas: int) -> Asked:
    """Talks that come back, all with the same first block. At the end a text may only end like another: whether its blocks
    then count behind another beginning is left open."""
    talks, name, asked = [[0, 1]], 2, []
    for left in reversed(range(rng.randint(3, 8))):
        talk = list(rng.choice(talks))[: rng.choice((1, 9, 9, 9))]
        more = rng.choice((0, 1, 1, 2, 4))
        talk += range(name, name + more)
        name += more
        talks.append(talk)
        if not left and rng.random() < 0.5:
            talk = [name, *talk[1:]]
        asked.append((talk, [rng.choice((0, 1, 2, 3, 5, 9)) for _ in range(num_replicas)]))
    return asked


def routed(router_class: type, num_replicas: int, slack: int, asked: Asked) -> list[Any]:
    """The choices for all requests, one after the other."""
    router = router_class(num_replicas, slack)
    return [router.choose(blocks, loads) for blocks, loads in asked]


def _numbers(result: list[Any]) -> list[Any]:
    if None in result:
        raise NotYet("returns-nothing", "choose returned None. Is a `return` missing?")
    return result


@ROUTER.grader
def grade_router(router: type) -> None:
    by_hand = [
        ([1, 2, 3], [1, 0, 0]),
        ([1, 2, 3, 4], [0, 3, 0]),
        ([1, 8, 9], [0, 3, 0]),
        ([1, 2, 3, 4], [0, 5, 1]),
        ([1, 2, 3, 4], [2, 5, 0]),
    ]
    talk, more = [1, 2], [1, 2, 3, 4]
    cases: list[tuple[int, int, Asked]] = [
        *[(3, 4, by_hand[:n]) for n in range(1, 6)],
        (2, 4, [([1, 2], [0, 0]), ([1, 2], [4, 0])]),
        (2, 4, [([1], [0, 0]), ([1, 2], [1, 0])]),
        (3, 2, [([1, 2], [0, 0, 0]), ([1, 2], [1, 9, 0])]),
        (2, 4, [([1, 2, 3], [0, 0]), ([7, 2, 3], [1, 0])]),
        (3, 2, [(talk, [0, 1, 1]), (talk, [9, 0, 1]), (more, [0, 3, 9]), (more, [9, 1, 0])]),
    ]
    rng = random.Random(10)
    for _ in range(150):
        num_replicas = rng.randint(2, 4)
        cases.append((num_replicas, rng.choice((0, 2, 4)), _asked(rng, num_replicas)))

    ROUTER.judge("Router", router, cases, play=routed, clean=_numbers)
