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


@pytest.mark.parametrize(
    ("query", "of", "op", "bound", "values", "holds"),
    [
        ("a", "now", ">", 5, {"a": (2, 6)}, True),
        ("a", "now", "<", 6, {"a": (2, 6)}, False),
        ("a", "ratio", ">", 2.9, {"a": (2, 6)}, True),
        ("a", "ratio", ">", 3, {"a": (2, 6)}, False),
        ("a", "ratio", ">", 1e9, {"a": (0, 0.1)}, True),  # from nothing to something
        ("a", "ratio", "<", 1.1, {"a": (0, 0)}, True),  # from nothing to nothing
        *(("b", of, op, 1, {"a": (1, 1)}, False) for of in ("now", "ratio") for op in "<>"),  # no data
        *(("a / b", of, op, 1, {"a": (0, 0), "b": (0, 0)}, False) for of in ("now", "ratio") for op in "<>"),
    ],
)
def test_a_check_looks_at_the_value_now_or_at_its_ratio_to_before(query, of, op, bound, values, holds):
    assert check(query, of, op, bound).holds(moments(**values)) == holds


def cause(name: str, *checks: Check) -> Cause:
    return Cause(name, "", checks, "")


ALARM = (check("bad", "ratio", ">", 2),)
HIGH = (cause("a-is-high", check("a", "now", ">", 5)), cause("b-is-high", check("b", "now", ">", 5)))
NEAR = (cause("few", check("a", "now", "<", 2.5, 0.2)), cause("many", check("a", "now", ">", 2.5, 0.2)))


@pytest.mark.parametrize(
    ("causes", "bad", "a", "b", "verdict"),
    [
        (HIGH, 3, 9, 0, "a-is-high"),
        (HIGH, 3, 0, 9, "b-is-high"),
        (HIGH, 3, 9, 9, "unclear"),
        (HIGH, 3, 0, 0, "unclear"),
        (HIGH, 1.5, 9, 0, "nothing"),  # no alarm rings
        (NEAR, 3, 2.2, 0, "undecided: too close to call"),
        (NEAR, 3, 2.8, 0, "undecided: too close to call"),
        (NEAR, 3, 1.9, 0, "few"),
        (NEAR, 3, 3.1, 0, "many"),
    ],
)
def test_the_verdict_is_the_only_cause_that_nothing_contradicts(causes, bad, a, b, verdict):
    found = investigate(ALARM, causes, moments(bad=(1, bad), a=(0, a), b=(0, b)))
    assert found.verdict == verdict
    assert set(found.left) | set(found.refuted) == {cause.name for cause in causes}
