"""workload_simulator.py: it ends well, honours its options, and refuses nonsense."""

import json

import pytest

from phase4_scheduler import workload_simulator
from phase4_scheduler.story import recorded_story, simulator_chapters, simulator_load

CLAIMS = {
    "four-patterns", "histogram-clusters", "kv-usage-alert", "chunked-prefill", "littles-law",
}  # fmt: skip
FIGURES = ("traffic_clusters", "recorded_runs", "load_knee", "long_prompt_stall")


def test_script(run_script):
    report = run_script(workload_simulator, "--quick", figures=FIGURES)
    found = report["claims"]
    assert set(found) == CLAIMS
    assert found["histogram-clusters"]["measured"] == 2
    assert found["kv-usage-alert"]["measured"] == pytest.approx(found["kv-usage-alert"]["predicted"], abs=0.1)
    assert report["results"]["virtual"]["requests"] == 200
    off = report["results"]["replay_rtx4090"]
    assert len(off) == 3 and abs(off[1][0]) < 1


def test_script_with_a_trace(run_script, tmp_path, monkeypatch):
    """Without the parts that do not depend on its options."""
    monkeypatch.setattr(simulator_chapters, "three_patterns", lambda *_: None)
    monkeypatch.setattr(recorded_story, "the_truth", lambda *_: None)
    monkeypatch.setattr(simulator_chapters, "per_pattern", lambda *_: 1.0)
    for part in ("load_sweep", "long_prompt"):
        monkeypatch.setattr(simulator_load, part, lambda *_: None)
    lengths = dict(input_length=1100, output_length=20)
    lines = [dict(timestamp=100 * i, hash_ids=[1, 2, 9 + i], **lengths) for i in range(30)]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, lines)))
    report = run_script(
        workload_simulator, "--quick", "--trace", trace, "--cost", "rtx4090-table",
        "--pattern", "chat", "--requests", 20, "--policy", "priority",
    )  # fmt: skip
    assert report["results"]["trace"] == dict(requests=20)
    virtual = report["results"]["virtual"]
    assert virtual["requests"] == 20 and virtual["prompt_tokens"] == 20 * 1100
    assert virtual["prefix_hit_rate"] == pytest.approx(19 * 1024 / (20 * 1100))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "0"], "--rate is 0"),
        (["--rate", "nan"], "out of range: 0 to inf"),
        (["--num-blocks", "1"], "1 is out of range: 2 to"),
        (["--cost", "abacus"], "unknown card 'abacus'"),
        (["--trace", "nowhere.csv"], "cannot read the trace nowhere.csv"),
    ],
)
def test_mistakes_are_told_in_one_line(mistake_of, arguments, message):
    assert message in mistake_of(workload_simulator, *arguments)
