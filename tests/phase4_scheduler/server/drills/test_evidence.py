"""The rules: what agrees, what contradicts, and that they hold on machines of any speed."""

import math

import promql_parser
import pytest

from phase4_scheduler.server.drills import DRILLS, Cause, Check, Moments, Recording, investigate

CASES = [(drill, cause) for drill in DRILLS.values() for cause in drill.causes]


def moments(**values: tuple[float, float]) -> Moments:
    """Gauges that had the first value before, and have the second one now."""
    recording = Recording()
    for at, which in ((0.0, 0), (10.0, 1)):
        for name, pair in values.items():
            if not math.isnan(pair[which]):
                recording.add(at, name, {}, pair[which])
    return Moments(recording, 0.0, 10.0, window=5)


def check(query: str, of: str, op: str, bound: float) -> Check:
    return Check("", query, of, op, bound)


def test_a_check_looks_at_now_or_at_the_ratio_to_before():
    m = moments(a=(2.0, 6.0))
    assert check("a", "now", ">", 5).holds(m) and not check("a", "now", "<", 6).holds(m)
    assert check("a", "ratio", ">", 2.9).holds(m) and not check("a", "ratio", ">", 3).holds(m)


def test_from_nothing_to_something_is_more_than_any_bound_and_nothing_stays_the_same():
    assert check("a", "ratio", ">", 1e9).holds(moments(a=(0.0, 0.1)))
    assert check("a", "ratio", "<", 1.1).holds(moments(a=(0.0, 0.0)))


def test_no_data_speaks_for_nothing():
    for op in "<>":
        for of in ("now", "ratio"):
            assert not check("b", of, op, 1.0).holds(moments(a=(1.0, 1.0)))
            assert not check("a / b", of, op, 1.0).holds(moments(a=(0.0, 0.0), b=(0.0, 0.0)))


def test_a_minute_in_a_query_is_the_nights_window():
    assert moments().text("rate(x[1m]) / rate(y[1m])") == "rate(x[5s]) / rate(y[5s])"


def cause(name: str, *checks: Check) -> Cause:
    return Cause(name, "", checks, "")


ALARM = (check("bad", "ratio", ">", 2),)


@pytest.mark.parametrize(
    ("bad", "a", "b", "verdict"),
    [
        ((1.0, 3.0), 9.0, 0.0, "a-is-high"),
        ((1.0, 3.0), 0.0, 9.0, "b-is-high"),
        ((1.0, 3.0), 9.0, 9.0, "unclear"),
        ((1.0, 3.0), 0.0, 0.0, "unclear"),
        ((1.0, 1.5), 9.0, 0.0, "nothing"),  # whatever the others say: nobody is woken
    ],
)
def test_the_verdict_is_the_only_cause_that_nothing_contradicts(bad, a, b, verdict):
    causes = (cause("a-is-high", check("a", "now", ">", 5)), cause("b-is-high", check("b", "now", ">", 5)))
    found = investigate(ALARM, causes, moments(bad=bad, a=(0.0, a), b=(0.0, b)))
    assert found.verdict == verdict
    assert set(found.left) | set(found.refuted) == {"a-is-high", "b-is-high"}


@pytest.mark.parametrize(
    ("a", "verdict"),
    [
        (2.2, "undecided: too close to call"),
        (2.8, "undecided: too close to call"),
        (1.9, "few"),
        (3.1, "many"),
    ],
)
def test_near_the_bound_between_two_causes_neither_is_named(a, verdict):
    few, many = (
        cause(name, Check("", "a", "now", op, 2.5, 0.2)) for name, op in (("few", "<"), ("many", ">"))
    )
    assert investigate(ALARM, (few, many), moments(bad=(1, 3), a=(0.0, a))).verdict == verdict


def test_the_first_check_that_fails_is_what_speaks_against_a_cause():
    high, low = check("a", "now", ">", 5), check("a", "now", "<", 5)
    found = investigate(ALARM, (cause("x", high, low),), moments(bad=(1, 3), a=(0.0, 9.0)))
    assert found.refuted == {"x": low}


@pytest.mark.parametrize(
    ("drill", "cause"), CASES, ids=lambda x: getattr(x, "name", getattr(x, "number", ""))
)
def test_each_cause_of_each_night_can_be_contradicted_by_promql(drill, cause):
    assert cause.checks and cause.says and cause.remedy
    for check in cause.checks:
        promql_parser.parse(moments().text(check.query))
        seconds = check.query.count("_seconds")
        assert check.of == "ratio" or seconds == 0 or "/ (" in check.query, "no rule asks for seconds"


@pytest.mark.parametrize("drill", DRILLS.values(), ids=lambda drill: drill.number)
def test_each_night_has_faults_among_its_causes_and_three_wrong_answers_to_each(drill):
    names = [cause.name for cause in drill.causes]
    assert len(set(names)) == len(names) >= 4
    assert {name for name, fault in drill.faults.items() if not fault.measured} <= set(names)
    assert len(drill.faults) >= 2
    for query in [drill.figure, *drill.watch.values()]:
        promql_parser.parse(moments().text(query))
