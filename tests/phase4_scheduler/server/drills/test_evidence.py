"""The rules: what agrees, and what contradicts."""

import math

import pytest

from phase4_scheduler.server.drills import Cause, Check, Moments, Recording, investigate


def moments(**values: tuple[float, float]) -> Moments:
    """Gauges that had the first value before, and have the second one now."""
    recording = Recording()
    for at, which in ((0.0, 0), (10.0, 1)):
        for name, pair in values.items():
            if not math.isnan(pair[which]):
                recording.add(at, name, {}, pair[which])
    return Moments(recording, 0.0, 10.0, window=5)


def check(query: str, of: str, op: str, bound: float, margin: float = 0.0) -> Check:
    return Check("", query, of, op, bound, margin)


def test_a_ratio_to_nothing():
    assert moments(a=(0, 0.1)).ratio("a") == math.inf and moments(a=(0, 0)).ratio("a") == 1


def cause(name: str, *checks: Check) -> Cause:
    return Cause(name, "", checks, "")


ALARM = (check("bad", "ratio", ">", 2),)
HIGH = (cause("a-is-high", check("a", "now", ">", 5)), cause("b-is-high", check("b", "now", ">", 5)))
NEAR = (cause("few", check("a", "now", "<", 2.5, 0.2)), cause("many", check("a", "now", ">", 2.5, 0.2)))


@pytest.mark.parametrize(
    ("causes", "bad", "a", "b", "verdict"),
    [
        (HIGH, 3, 9, 0, "a-is-high"),
        (HIGH, 3, 9, 9, "unclear"),
        (HIGH, 3, 0, 0, "unclear"),
        (HIGH, 1.5, 9, 0, "nothing"),  # no alarm rings
        (NEAR, 3, 2.2, 0, "undecided: too close to call"),
        (NEAR, 3, 1.9, 0, "few"),
        (NEAR, math.nan, 3.1, 0, "nothing"),  # no data speaks for nothing
        (HIGH, 3, math.nan, 9, "b-is-high"),
    ],
)
def test_the_verdict_is_the_only_cause_that_nothing_contradicts(causes, bad, a, b, verdict):
    found = investigate(ALARM, causes, moments(bad=(1, bad), a=(0, a), b=(0, b)))
    assert found.verdict == verdict
    assert set(found.left) | set(found.refuted) == {cause.name for cause in causes}
