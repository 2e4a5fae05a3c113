"""Answers to exercise 4.9."""

import math

from tests.exercises.changed import changed


def in_system(requests):
    begin = min(arrival for arrival, end in requests)
    last = max(end for arrival, end in requests)
    return sum(end - arrival for arrival, end in requests) / (last - begin)


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


def running(rate, tokens, fixed, each, most):
    for n in range(1, most + 1):
        stay = tokens * (fixed + each * n)
        if n / stay >= rate:
            return n
    return 0


def running_by_formula(rate, tokens, fixed, each, most):
    """n = rate * tokens * (fixed + each * n), solved for n."""
    left = 1 - rate * tokens * each
    if left <= 0:
        return 0
    n = max(1, math.ceil(rate * tokens * fixed / left))
    return n if n <= most else 0


def knee(tokens, fixed, each, most):
    return most / (tokens * (fixed + each * most))


def knee_step_by_step(tokens, fixed, each, most):
    step = fixed + each * most
    tokens_a_second = most / step
    return tokens_a_second / tokens


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


IN = "sum(end - arrival for arrival, end in requests)"
STAY = "tokens * (fixed + each * n)"
RIGHT = [
    (in_system, running, knee),
    (in_system_by_the_law, running_by_formula, knee_step_by_step),
    (in_system_by_events, running, knee),
]
WRONG = {
    "clock-from-zero": (changed(in_system, {"last - begin": "last"}), running, knee),
    "run-by-the-list": (
        changed(in_system, {"(last - begin)": "(requests[-1][1] - requests[0][0])"}),
        running,
        knee,
    ),
    "run-ends-with-the-last-arrival": (
        changed(in_system, {"max(end for": "max(arrival for"}),
        running,
        knee,
    ),
    "mean-stay": (changed(in_system, {"(last - begin)": "len(requests)"}), running, knee),
    "sum-of-stays": (changed(in_system, {" / (last - begin)": ""}), running, knee),
    "rate-only": (changed(in_system, {IN: "len(requests)"}), running, knee),
    "the-most-at-once": (at_once, running, knee),
    "as-arrivals-see-it": (as_arrivals_see_it, running, knee),
    "step-of-one": [
        (in_system, changed(running, {"each * n": "each"}), knee),
        (in_system, running, changed(knee, {"each * most": "each"})),
    ],
    "step-of-the-fullest": (in_system, changed(running, {"each * n": "each * most"}), knee),
    "weights-for-each": [
        (in_system, changed(running, {"(fixed + each * n)": "n * (fixed + each)"}), knee),
        (in_system, running, changed(knee, {"(fixed + each * most)": "most * (fixed + each)"})),
    ],
    "one-step-each": (in_system, changed(running, {STAY: "fixed + each * n"}), knee),
    "largest-that-suffices": (
        in_system,
        changed(running, {"range(1, most + 1)": "range(most, 0, -1)"}),
        knee,
    ),
    "over-the-cache": (in_system, beyond, knee),
    "exactly-is-too-few": (in_system, changed(running, {">=": ">"}), knee),
    "one-too-few": (in_system, changed(running, {"return n\n": "return max(1, n - 1)\n"}), knee),
    "most-for-never": (in_system, changed(running, {"return 0": "return most"}), knee),
    "tokens-a-second": (
        in_system,
        running,
        changed(knee, {"(tokens * (fixed + each * most))": "(fixed + each * most)"}),
    ),
    "one-request": (in_system, running, changed(knee, {"return most": "return 1"})),
    "upside-down": (
        in_system,
        running,
        changed(knee, {"most / (tokens * (fixed + each * most))": "tokens * (fixed + each * most) / most"}),
    ),
    "returns-nothing": (changed(in_system, {"return sum": "sum"}), running, knee),
}
