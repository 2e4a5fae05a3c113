"""Latencies and clusters: answers worked out by hand, and clusters that are there or are not."""

import numpy as np
import pytest

from phase4_scheduler.simulator.latency import RequestRecord, Spread, little, summarise
from phase4_scheduler.simulator.traffic import count_clusters, silhouettes


def test_a_summary_by_hand():
    records = [
        RequestRecord("a", 0.0, 10, 3, [1.0, 2.0, 4.0]),  # TTFT 1, ITL 1 and 2, mean 1.5
        RequestRecord("b", 2.0, 20, 1, [5.0]),  # TTFT 3, no gap
        RequestRecord("b", 3.0, 30, 2, [3.5, 8.0]),  # TTFT 0.5, ITL 4.5
    ]
    felt = summarise(records, ttft_slo=1.0, tpot_slo=1.5)
    assert (felt.requests, felt.seconds, felt.prompt_tokens, felt.output_tokens) == (3, 8.0, 60, 6)
    assert felt.ttft == Spread(1.5, 1.0, pytest.approx(2.8), pytest.approx(2.96), 3.0)
    assert (felt.itl.mean, felt.itl.p50, felt.itl.max) == (2.5, 2.0, 4.5)
    assert felt.e2e.mean == 4.0  # 4, 3, 5
    assert [r.meets(1.0, 1.5) for r in records] == [True, False, False]
    assert [r.meets(3.0, 0.1) for r in records] == [False, True, False]
    assert (felt.good, felt.goodput, felt.good_share) == (1, 1 / 8, 1 / 3)
    assert (felt.requests_per_second, felt.tokens_per_second) == (3 / 8, 6 / 8)
    assert little(records) == pytest.approx(12 / 8)  # 4 + 3 + 5 request seconds in 8 seconds


def test_nothing_to_sum_up():
    for records in ([], [RequestRecord("a", 0.0, 1, 1, [])]):
        with pytest.raises(ValueError, match="finished requests"):
            summarise(records)


# ---------------------------------------------------------------------- clusters


def test_clusters_that_are_there_are_found_and_a_crowd_is_one():
    rng = np.random.default_rng(0)
    for centres in ([(0, 0), (3, 3)], [(0, 0), (4, 0), (0, 4), (4, 4), (8, 0)]):
        points = np.concatenate([rng.normal(c, 0.3, size=(150, 2)) for c in centres])
        assert count_clusters(silhouettes(points)) == len(centres)
    for crowd in (rng.uniform(size=(500, 2)), rng.normal(size=(500, 2)), np.zeros((30, 2)), np.zeros((1, 2))):
        assert count_clusters(silhouettes(crowd)) == 1
