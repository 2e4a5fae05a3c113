import math


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


KNEE = "most / (tokens * (fixed + each * most))"
RIGHT = [
    {
        "in_system": in_system_by_events,
        "running": running_by_formula,
        KNEE: "most / (fixed + each * most) / tokens",
    }
]
