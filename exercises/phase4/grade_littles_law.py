"""Grader of exercise 4.9: Little's law and the saturation point."""

import random
from collections.abc import Callable

from exercises.judging.solutions import Solution

INSIDE, SECONDS = "sum(done - arrival for arrival, done in requests)", "(end - begin)"
SEEN = "[sum(a <= time < e for a, e in requests) for time, _ in requests]"
STAY, KNEE = "tokens * (fixed + each * n)", "most / (tokens * (fixed + each * most))"
EXERCISE = Solution(
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
        "step-of-one": {"each * n": "each"},
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
        "step-of-one": {"each * most": "each"},
        "weights-for-each": {KNEE: "most / (tokens * most * (fixed + each))"},
        "tokens-a-second": {KNEE: "most / (fixed + each * most)"},
        "one-request": {KNEE: "1 / (tokens * (fixed + each * most))"},
        "upside-down": {KNEE: "tokens * (fixed + each * most) / most"},
    },
)


@EXERCISE.grader
def grade_littles_law(in_system: Callable, running: Callable, highest_rate: Callable) -> None:
    rng = random.Random(9)
    logs = [
        ([(2.0, 6.0), (3.0, 4.0), (5.0, 7.0)],),
        ([(1.0, 3.0)],),
        ([(4.0, 5.0), (1.0, 9.0), (2.0, 3.0)],),
    ]
    for _ in range(60):
        arrivals = [rng.uniform(1, 20) for _ in range(rng.randint(2, 8))]  # listed in no order
        logs.append(([(a, a + rng.expovariate(0.3) + 0.1) for a in arrivals],))
    EXERCISE.judge("in_system", in_system, logs, tolerance=1e-6)
    servers = [(8, 0.25, 0.125, 4), (8, 0.25, 0.125, 8), (4, 0.5, 0.0, 3), (1, 1.0, 0.25, 6)]
    for _ in range(60):
        servers.append(
            (rng.randint(2, 200), rng.uniform(0.005, 0.05), rng.uniform(0, 0.004), rng.randint(1, 64))
        )
    # Rates of which some meet a number exactly: all of these are exact in binary.
    loads = [(rate, 8, 0.25, 0.125, 4) for rate in (0.5, 0.25, 1.0)] + [(1.5, 4, 0.5, 0.0, 3)]
    for server in servers[4:]:
        rate = EXERCISE.answers["highest_rate"](*server) * rng.choice((0.01, 0.3, 0.6, 0.9, 0.99, 1.01, 1.5))
        loads.append((rate, *server))
    EXERCISE.judge("running", running, loads)
    EXERCISE.judge("highest_rate", highest_rate, servers, tolerance=1e-6)
