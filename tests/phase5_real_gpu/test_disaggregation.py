"""disaggregation.py: what it says holds, its map comes from what was measured, and mistakes get one line."""

import os

import pytest

from labkit.errors import LabError
from phase5_real_gpu import disaggregation
from phase5_real_gpu.parallel.engine_worker import pin
from phase5_real_gpu.parallel.goodput_trials import Layout
from phase5_real_gpu.parallel.measured_map import (
    KINDS,
    LAYOUTS,
    MEASURED,
    PROMISES,
    RATES,
    REQUESTS,
    Measured,
)
from phase5_real_gpu.story.goodput_map_story import front_of


def test_what_was_measured_is_whole():
    measured = Measured.load(MEASURED)
    assert measured.runs.keys() == KINDS.keys() and measured.cost.prices and measured.handover > 0
    for traffic, layouts in measured.runs.items():
        assert layouts.keys() == {layout.name for layout in LAYOUTS}
        for runs in layouts.values():
            assert [float(rate) for rate in runs] == list(RATES[traffic])
            assert all(len(pairs) == REQUESTS[traffic] for pairs in runs.values())
        cells = [measured.goodput(traffic, split, p) for p in PROMISES.values() for split in (True, False)]
        assert max(cells) > 0


def test_bad_options(mistake_of, tmp_path):
    assert "holds no measurements" in mistake_of(disaggregation, "--measured", tmp_path / "none.json")
    part = tmp_path / "part.json"
    Measured(prices=[1.0], runs={"summaries": {}}).save(part)
    assert "part.json lacks code, chat: measure each" in mistake_of(disaggregation, "--measured", part)
    assert "no traffic is called 'rush'" in mistake_of(disaggregation, "--measure", "rush")


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 3, 5}, raising=False)
    proxy = front_of(Layout(True, 32))
    assert [config.core for config in proxy.configs.values()] == [3, 5]
    with pytest.raises(LabError, match=r"may not use core 0: take one of \[3, 5, 7\]"):
        pin(0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    with pytest.raises(LabError, match="two CPU cores are needed"):
        front_of(Layout(False, 32))


@pytest.mark.proof
def test_script(run_script):
    report = run_script(disaggregation, "--quick", figures=["disaggregation_map"])
    assert {"pd-same-tokens", "pd-bytes", "pd-copy-speed", "pd-contention", "pd-simulated"} <= report[
        "claims"
    ].keys()
    assert report["results"]["blocks_read"][0] > max(report["results"]["blocks_read"][1:])
