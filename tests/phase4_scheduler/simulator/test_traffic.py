"""Traffic and traces: against scipy's distributions and answers worked out by hand."""

import json
import math
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from labkit.errors import LabError
from phase3_paged_attention.traffic import PATTERNS
from phase4_scheduler.simulator.traffic import (
    PRIORITIES,
    TrafficRequest,
    arrival_times,
    at_rate,
    draw_traffic,
    read_trace,
)


def lengths_of(requests):
    return [(r.prompt_tokens, r.output_tokens) for r in requests]


# ---------------------------------------------------------------------- arrivals and patterns


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_follow_the_gamma_distribution(burstiness):
    gaps = np.diff(arrival_times(4001, 5.0, burstiness, np.random.default_rng(3)))
    wanted = stats.gamma(burstiness, scale=1 / (5.0 * burstiness))
    assert stats.kstest(gaps, wanted.cdf).pvalue > 0.01
    assert gaps.mean() == pytest.approx(0.2, rel=0.15)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1 / burstiness, rel=0.2)
    other = stats.gamma(2 * burstiness, scale=1 / (10.0 * burstiness))
    assert stats.kstest(gaps, other.cdf).pvalue < 1e-6  # the test can tell


def test_mixed_traffic_is_a_third_of_each_pattern():
    drawn = draw_traffic("mixed", 3000, 2.0, seed=1)
    for kind, priority in PRIORITIES.items():
        of_kind = [r for r in drawn if (r.kind, r.priority) == (kind, priority)]
        assert len(of_kind) == pytest.approx(1000, rel=0.1)
        assert 0.9 < max(r.prompt_tokens for r in of_kind) / PATTERNS[kind].isl[1] <= 1


def test_the_same_seed_asks_for_the_same_work_at_any_rate():
    at_once = draw_traffic("mixed", 50, math.inf, seed=7)
    assert {r.arrival for r in at_once} == {0.0} and {r.arrival for r in at_rate(at_once, 2.0)} == {0.0}
    apart = [TrafficRequest(t, 5, 5) for t in (0.0, 1.0, 4.0)]
    assert [r.arrival for r in at_rate(apart, 4.0)] == [0, 0.125, 0.5]
    slow, fast = draw_traffic("mixed", 50, 1.0, seed=7), draw_traffic("mixed", 50, 9.0, 0.3, seed=7)
    assert lengths_of(slow) == lengths_of(fast)
    assert draw_traffic("mixed", 50, 1.0, seed=7) == slow != draw_traffic("mixed", 50, 1.0, seed=8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mixed", 0, 1.0), "requests is 0"),
        (("mixed", 5, 0.0), "rate is 0.0"),
        (("mixed", 5, -1.0), "rate is -1.0"),
        (("mixed", 5, math.nan), "rate is nan"),
        (("mixed", 5, 1.0, 0.0), "burstiness is 0.0"),
        (("mixed", 5, 1.0, math.inf), "burstiness is inf"),
        (("poetry", 5, 1.0), "unknown pattern 'poetry'"),
    ],
)
def test_impossible_traffic(arguments, message):
    with pytest.raises(ValueError, match=message):
        draw_traffic(*arguments)


# ---------------------------------------------------------------------- traces

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,110,27
"""


def mooncake(**fields):
    return json.dumps(dict(timestamp=27482, input_length=1000, output_length=52, hash_ids=[46, 47]) | fields)


def write(tmp_path, text, name="trace.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        AZURE,
        "\ufeff" + AZURE.replace("\n", "\r\n") + "\n\n",
        AZURE.replace("16 18", "16T18").replace("9600,", "9600Z,"),
        "TIMESTAMP,ContextTokens,GeneratedTokens\n100.052,110,27\n100,4808,10",  # in seconds, the later one first
    ],
)
def test_azure(tmp_path, text):
    requests = read_trace(write(tmp_path, text))
    assert lengths_of(requests) == [(4808, 10), (110, 27)]
    assert [r.arrival for r in requests] == pytest.approx([0, 0.052], abs=1e-5)


def test_mooncake(tmp_path):
    lines = mooncake() + "\n" + mooncake(timestamp=27000, hash_ids=[46]) + "\n"
    requests = read_trace(write(tmp_path, lines))
    assert [r.arrival for r in requests] == pytest.approx([0, 0.482])
    assert [r.hash_ids for r in requests] == [(46,), (46, 47)]


BAD_AZURE = [
    ("2023-11-16 18:17:05,10", "GeneratedTokens is missing"),
    ("2023-11-16 18:17:05,99999999999,1", "ContextTokens is '99999999999'"),
    ("2023-13-45 18:17:05,10,1", "TIMESTAMP is '2023-13-45 18:17:05'"),
    (",10,1", "TIMESTAMP is ''"),
]
BAD_MOONCAKE = [
    ("{", "Invalid JSON"),
    ("[1]", "should be an object"),
    ("{}", "timestamp is missing"),
    (mooncake(timestamp=float("nan")), "timestamp is nan"),
    (mooncake(input_length=10.5), "input_length is 10.5"),
    (mooncake(output_length=10**400), "output_length is 1000"),
    (mooncake(hash_ids=[1, -2]), "hash_ids.1 is -2"),
    (mooncake(hash_ids=[1, 2, 3]), "3 hash_ids, but 1000 tokens have only 2 blocks"),
]


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [(AZURE, *case) for case in BAD_AZURE] + [(mooncake() + "\n", *case) for case in BAD_MOONCAKE],
)
def test_bad_lines_are_named(tmp_path, good, bad, message):
    number = good.count("\n") + 1
    with pytest.raises(LabError, match=f"trace.csv, line {number}: .*({message})") as caught:
        read_trace(write(tmp_path, good + bad + "\n"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" \n\n", "holds no requests"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no requests"),
        ("time,in,out\n1,2,3\n", "no trace that this course can read"),
        (bytes(range(256)) * 10, "no trace that this course can read"),
    ],
)
def test_files_that_are_no_trace(tmp_path, text, message):
    with pytest.raises(LabError, match=message):
        read_trace(write(tmp_path, text))
    with pytest.raises(LabError, match="cannot read the trace"):
        read_trace(tmp_path / "nothing.csv")


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_any_bytes_give_a_trace_or_one_clear_error(tmp_path_factory, noise):
    path = tmp_path_factory.mktemp("t") / "trace"
    for beginning in (b"", AZURE.encode(), mooncake().encode() + b"\n"):
        path.write_bytes(beginning + noise)
        with suppress(LabError):
            assert read_trace(path)
