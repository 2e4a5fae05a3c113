"""Latencies and clusters: answers worked out by hand, and clusters that are there or are not."""

import numpy as np
import pytest

from phase4_scheduler.simulator.clusters import find_clusters, silhouette
from phase4_scheduler.simulator.latency import RequestRecord, Spread, little, percentiles, summarise
from phase4_scheduler.simulator.traffic import PRIORITIES, draw_traffic


def test_percentiles_by_hand():
    assert percentiles([30, 10, 40, 20], [0, 50, 95, 100]) == pytest.approx([10, 25, 38.5, 40])
    assert percentiles([7.0], [1, 99]) == [7.0, 7.0]


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


def blobs(centres, n=150, spread=0.3, seed=0):
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(c, spread, size=(n, 2)) for c in centres])


@pytest.mark.parametrize(
    "centres", [[(0, 0), (3, 3)], [(0, 0), (3, 0), (0, 3)], [(0, 0), (4, 0), (0, 4), (4, 4), (8, 0)]]
)
def test_clusters_that_are_there_are_found(centres):
    found = find_clusters(blobs(centres))
    assert len(found.centres) == len(centres)
    for centre in centres:
        assert np.min(np.linalg.norm(found.centres - centre, axis=1)) < 0.2
    truth = np.repeat(np.arange(len(centres)), 150)
    assert all(np.bincount(found.labels[truth == i]).max() > 145 for i in range(len(centres)))


def test_one_crowd_is_no_clusters():
    rng = np.random.default_rng(0)
    drawn = [draw_traffic(pattern, 500, 1.0) for pattern in PRIORITIES]
    for points in (
        rng.uniform(size=(500, 2)), rng.normal(size=(500, 2)), np.zeros((30, 2)), np.zeros((1, 2)),
        *(np.log([[r.prompt_tokens, r.output_tokens] for r in requests]) for requests in drawn),
    ):  # fmt: skip
        assert len(find_clusters(points).centres) == 1


def test_silhouette_by_hand():
    points, labels = np.array([[0.0], [1.0], [10.0]]), np.array([0, 0, 1])
    # 0: own 1, other 10; 1: own 1, other 9; 10 is alone, which counts as 0
    assert silhouette(points, labels) == pytest.approx((9 / 10 + 8 / 9 + 0) / 3)
