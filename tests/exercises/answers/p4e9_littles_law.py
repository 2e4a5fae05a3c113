"""Answers to exercise 4.9."""

import math


def in_system_by_the_law(requests):
    """The rate, times the mean stay."""
    seconds = max(end for _, end in requests) - min(arrival for arrival, _ in requests)
    mean = sum(end - arrival for arrival, end in requests) / len(requests)
    return len(requests) / seconds * mean


def in_system_by_events(requests):
    """How many are inside, from one event to the next."""
    events = sorted([(a, 1) for a, _ in requests] + [(e, -1) for _, e in requests])
    inside = area = 0
    for (time, change), (following, _) in zip(events, events[1:]):
        inside += change
        area += inside * (following - time)
    return area / (events[-1][0] - events[0][0])


def running_by_formula(rate, tokens, fixed, each, most):
    """n = rate * tokens * (fixed + each * n), solved for n."""
    left = 1 - rate * tokens * each
    if left <= 0:
        return 0
    n = max(1, math.ceil(rate * tokens * fixed / left))
    return n if n <= most else 0


def as_arrivals_see_it(requests):
    seen = 0
    for arrival, _ in requests:
        for other, end in requests:
            seen += other <= arrival < end
    return seen / len(requests)


def at_once(requests):
    return max(sum(other <= arrival < end for other, end in requests) for arrival, _ in requests)


def beyond(rate, tokens, fixed, each, most):
    n = 1
    while n < rate * tokens * (fixed + each * n):
        n += 1
        if n > 10_000:
            return 0
    return n


INSIDE = "sum(done - arrival for arrival, done in requests)"
SECONDS = "(end - begin)"
STAY = "tokens * (fixed + each * n)"
KNEE = "most / (tokens * (fixed + each * most))"
RIGHT = [
    {"in_system": in_system_by_the_law, "running": running_by_formula},
    {"in_system": in_system_by_events, KNEE: "most / (fixed + each * most) / tokens"},
]
WRONG = {
    "clock-from-zero": {SECONDS: "end"},
    "run-by-the-list": {SECONDS: "(requests[-1][1] - requests[0][0])"},
    "run-ends-with-the-last-arrival": {"max(done for _, done": "max(done for done, _"},
    "mean-stay": {SECONDS: "len(requests)"},
    "sum-of-stays": {f" / {SECONDS}": ""},
    "rate-only": {INSIDE: "len(requests)"},
    "the-most-at-once": {"in_system": at_once},
    "as-arrivals-see-it": {"in_system": as_arrivals_see_it},
    "step-of-one": [{"each * n": "each"}, {"each * most": "each"}],
    "step-of-the-fullest": {"each * n": "each * most"},
    "weights-for-each": [
        {STAY: "tokens * n * (fixed + each)"},
        {KNEE: "most / (tokens * most * (fixed + each))"},
    ],
    "one-step-each": {STAY: "fixed + each * n"},
    "largest-that-suffices": {"range(1, most + 1)": "range(most, 0, -1)"},
    "over-the-cache": {"running": beyond},
    "exactly-is-too-few": {"n >= rate": "n > rate"},
    "one-too-few": {"return n\n": "return max(1, n - 1)\n"},
    "most-for-never": {"return 0": "return most"},
    "tokens-a-second": {KNEE: "most / (fixed + each * most)"},
    "one-request": {KNEE: "1 / (tokens * (fixed + each * most))"},
    "upside-down": {KNEE: "tokens * (fixed + each * most) / most"},
    "returns-nothing": {f"return {INSIDE}": INSIDE},
}
