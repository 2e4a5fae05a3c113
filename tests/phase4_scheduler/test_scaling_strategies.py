"""scaling_strategies.py: each kind of traffic misses its SLO in its own way, and what is recommended mends it."""

from phase4_scheduler import scaling_strategies


def test_script(run_script):
    report = run_script(scaling_strategies, "--quick")
    results = report["results"]
    broke = [limit.split(": ")[1].split(" ")[-1] for limit in results["limits"].values()]
    assert len(set(results["limits"].values())) >= 3, broke
    for kept in results["kept"].values():
        assert kept["unchanged"] < 0.95
        assert max(share for remedy, share in kept.items() if remedy != "unchanged") >= 0.95
    assert set(report["claims"]) == {"scaling-table", "one-remedy-for-all"}
