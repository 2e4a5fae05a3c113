"""Grader of exercise 4.9: Little's law and the knee."""

import random
from collections.abc import Callable
from typing import Any

from exercises.grading import Diagnoses, Exercise, NotYet, show
from exercises.judging.judge import judge
from exercises.judging.slips import slips
from exercises.phase4.small_requests import BY_HAND

IN_SYSTEM = Diagnoses.of("p4e9_littles_law in_system")
RUNNING = Diagnoses.of("p4e9_littles_law running")
KNEE = Diagnoses.of("p4e9_littles_law knee")


def _in_system(requests):
    arrivals, ends = zip(*requests)
    stays = [end - arrival for arrival, end in requests]
    return sum(stays) / (max(ends) - min(arrivals))


SECONDS, SEEN = (
    "(max(ends) - min(arrivals))",
    "[sum(a <= time < e for a, e in requests) for time in arrivals]",
)
MEAN = f"sum(stays) / {SECONDS}"
IN_SYSTEM_WRONG = {
    "clock-from-zero": {SECONDS: "max(ends)"},
    "run-by-the-list": {SECONDS: "(ends[-1] - arrivals[0])"},
    "run-ends-with-the-last-arrival": {"max(ends)": "max(arrivals)"},
    "mean-stay": {SECONDS: "len(stays)"},
    "sum-of-stays": {MEAN: "sum(stays)"},
    "rate-only": {"sum(stays)": "len(stays)"},
    "the-most-at-once": {MEAN: f"max({SEEN})"},
    "as-arrivals-see-it": {MEAN: f"sum({SEEN}) / len(requests)"},
}


def _running(rate, tokens, fixed, each, most):
    for n in range(1, most + 1):
        if n / (tokens * (fixed + each * n)) >= rate:
            return n
    return 0


RUNNING_WRONG = {
    "step-of-one": {"each * n": "each"},
    "step-of-the-fullest": {"each * n": "each * most"},
    "weights-for-each": {"(fixed + each * n)": "n * (fixed + each)"},
    "one-step-each": {"tokens * ": ""},
    "largest-that-suffices": {"range(1, most + 1)": "range(most, 0, -1)"},
    "over-the-cache": {"range(1, most + 1)": "range(1, 10_001)"},
    "exactly-is-too-few": {">=": ">"},
    "one-too-few": {"return n": "return max(1, n - 1)"},
    "most-for-never": {"return 0": "return most"},
}


def _knee(tokens, fixed, each, most):
    return most / (tokens * (fixed + each * most))


KNEE_WRONG = {
    "step-of-one": {"each * most": "each"},
    "weights-for-each": {"(fixed + each * most)": "most * (fixed + each)"},
    "tokens-a-second": {"tokens * ": ""},
    "one-request": {"return most": "return 1"},
    "upside-down": {"return ": "return 1 / (", "most))": "most)))"},
}


def _whole_number(result: Any) -> int:
    if not isinstance(result, (int, float)) or result != int(result):
        raise NotYet("wrong-type", f"A whole number is asked for, and {show(result, 60)} came back.")
    return int(result)


def grade_littles_law(in_system: Callable, running: Callable, knee: Callable) -> str:
    rng = random.Random(9)
    logs = [
        ([(2.0, 6.0), (3.0, 4.0), (5.0, 7.0)],),
        ([(1.0, 3.0)],),
        ([(4.0, 5.0), (1.0, 9.0), (2.0, 3.0)],),
    ]
    for _ in range(60):
        arrivals = [rng.uniform(1, 20) for _ in range(rng.randint(2, 8))]  # listed in no order
        logs.append(([(a, a + rng.expovariate(0.3) + 0.1) for a in arrivals],))
    judge(
        in_system,
        logs,
        _in_system,
        slips(_in_system, IN_SYSTEM_WRONG),
        IN_SYSTEM,
        show=lambda log: f"in_system({[(round(a, 2), round(e, 2)) for a, e in log]})",
        tolerance=1e-6,
        present=lambda got, want: (f"{got:.6g}", f"{want:.6g}"),
        otherwise=BY_HAND,
    )
    servers = [(8, 0.25, 0.125, 4), (8, 0.25, 0.125, 8), (4, 0.5, 0.0, 3), (1, 1.0, 0.25, 6)]
    for _ in range(60):
        servers.append(
            (rng.randint(2, 200), rng.uniform(0.005, 0.05), rng.uniform(0, 0.004), rng.randint(1, 64))
        )
    # Rates of which some meet a number exactly: all of these are exact in binary.
    loads = [
        (0.5, 8, 0.25, 0.125, 4),
        (0.25, 8, 0.25, 0.125, 4),
        (1.0, 8, 0.25, 0.125, 4),
        (1.5, 4, 0.5, 0.0, 3),
    ]
    for server in servers[4:]:
        loads.append((_knee(*server) * rng.choice((0.01, 0.3, 0.6, 0.9, 0.99, 1.01, 1.5)), *server))
    judge(
        running,
        loads,
        _running,
        slips(_running, RUNNING_WRONG),
        RUNNING,
        show=lambda rate, tokens, fixed, each, most: (
            f"running(rate={rate:.4g}, tokens={tokens}, fixed={fixed:.4g}, each={each:.4g}, most={most})"
        ),
        clean=_whole_number,
        otherwise=BY_HAND,
    )
    judge(
        knee,
        servers,
        _knee,
        slips(_knee, KNEE_WRONG),
        KNEE,
        show=lambda tokens, fixed, each, most: (
            f"knee(tokens={tokens}, fixed={fixed:.4g}, each={each:.4g}, most={most})"
        ),
        tolerance=1e-6,
        present=lambda got, want: (f"{got:.6g} a second", f"{want:.6g} a second"),
        otherwise=BY_HAND,
    )
    return f"{len(logs)} logs and {len(loads)} servers, below their knee and above it."


EXERCISES = [
    Exercise("p4e9_littles_law", ("in_system", "running", "knee"), grade_littles_law),
]
