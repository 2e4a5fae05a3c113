"""scaling_strategies.py: each kind of traffic misses its SLO in its own way, and what is recommended mends it."""

import pytest

from phase4_scheduler import scaling_strategies
from phase4_scheduler.story import scaling_story


def test_script(run_script):
    report = run_script(scaling_strategies, "--quick")
    results = report["results"]
    broke = [limit.split(": ")[1].split(" ")[-1] for limit in results["limits"].values()]
    assert len(set(results["limits"].values())) >= 3, broke
    for kept in results["kept"].values():
        assert kept["unchanged"] < 0.95
        assert max(share for remedy, share in kept.items() if remedy != "unchanged") >= 0.95
    found = [float(found.strip("%")) for _, found, *_ in results["levels"]]
    assert found == sorted(found) and found[1] > 1.5 * found[0]
    alone, by_number, by_speed = results["mixed"].values()
    assert by_number < alone <= by_speed
    assert set(report["claims"]) == {"scaling-table", "one-remedy-for-all", "mixed-cards"}


def test_a_day(run_script, monkeypatch):
    for chapter in ("the_matrix", "old_prefixes", "mixed_cards"):
        monkeypatch.setattr(scaling_strategies, chapter, lambda *_: None)
    monkeypatch.setattr(scaling_story, "A_DAY", 0.001)
    results = run_script(scaling_strategies)["results"]
    day = {name: (hours, kept) for name, _, hours, _, kept in results["day"]}
    assert day["2 replicas"][0] == pytest.approx(48, abs=0.1) and len(day) == 12
    assert (
        day["by the queue, cold start 30 s"][0] < 30 and day["by tokens per second, cold start 30 s"][0] < 30
    )
    assert day["two models, 2 replicas each"][0] == pytest.approx(96, abs=0.1)
    assert day["two models share 3 GPUs, by tokens"][0] < 60
