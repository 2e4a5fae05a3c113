"""Grader of exercise 4.9: Little's law and the knee."""

import random
from collections.abc import Callable
from typing import Any

from exercises.grading import Diagnoses, Exercise, NotYet, show
from exercises.judging.judge import judge, variants
from exercises.phase4.visitors import BY_HAND

IN_SYSTEM = Diagnoses.of("p4e9_littles_law in_system")
RUNNING = Diagnoses.of("p4e9_littles_law running")
KNEE = Diagnoses.of("p4e9_littles_law knee")


def _in_system(requests, mistake=""):
    arrivals, ends = zip(*requests)
    stays = [end - arrival for arrival, end in requests]
    seconds = max(ends) - min(arrivals)
    if mistake == "clock-from-zero":
        seconds = max(ends)
    elif mistake == "run-by-the-list":
        seconds = ends[-1] - arrivals[0]
    elif mistake == "run-ends-with-the-last-arrival":
        seconds = max(arrivals) - min(arrivals)
    elif mistake == "mean-stay":
        return sum(stays) / len(stays)
    elif mistake == "sum-of-stays":
        return sum(stays)
    elif mistake == "rate-only":
        return len(stays) / seconds
    elif mistake == "the-most-at-once":
        return max(sum(a <= time < e for a, e in requests) for time in arrivals)
    elif mistake == "as-arrivals-see-it":
        return sum(sum(a <= time < e for a, e in requests) for time in arrivals) / len(requests)
    return sum(stays) / seconds


def _running(rate, tokens, fixed, each, most, mistake=""):
    def leaving(n):
        step = fixed + each * n
        if mistake == "step-of-one":
            step = fixed + each
        elif mistake == "step-of-the-fullest":
            step = fixed + each * most
        elif mistake == "weights-for-each":
            step = n * (fixed + each)
        stay = step if mistake == "one-step-each" else tokens * step
        return n / stay

    if mistake == "largest-that-suffices":
        return most if leaving(most) >= rate else 0
    last = 10_000 if mistake == "over-the-cache" else most
    for n in range(1, last + 1):
        if leaving(n) > rate or (leaving(n) == rate and mistake != "exactly-is-too-few"):
            return max(1, n - 1) if mistake == "one-too-few" else n
    return most if mistake == "most-for-never" else 0


def _knee(tokens, fixed, each, most, mistake=""):
    step = fixed + each * most
    if mistake == "step-of-one":
        step = fixed + each
    elif mistake == "weights-for-each":
        step = most * (fixed + each)
    elif mistake == "tokens-a-second":
        return most / step
    elif mistake == "one-request":
        return 1 / (tokens * step)
    elif mistake == "upside-down":
        return tokens * step / most
    return most / (tokens * step)


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
        variants(_in_system, IN_SYSTEM),
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
        variants(_running, RUNNING),
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
        variants(_knee, KNEE),
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
